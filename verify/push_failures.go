package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// pushEnds has the events of a partition that end or compare pushes.
type pushEnds struct {
	failures    map[uuid.UUID][]pushFailure // by push
	differences map[comparison]bool
}

// pushFailure is the event of a failure.
type pushFailure struct {
	row  pushRow
	code string
}

// comparison has the members of a comparison that the table has.
type comparison struct{ provider, customer, month, total, delivered string }

func newPushEnds() pushEnds {
	return pushEnds{failures: map[uuid.UUID][]pushFailure{}, differences: map[comparison]bool{}}
}

// pushContent has the members of the payloads of failures and comparisons.
type pushContent struct {
	PushID                                                uuid.UUID
	Provider, Key, Identifier, Feature, PeriodKey, Amount string
	Snapshot, Attempt                                     int
	Code, Customer, Total, Delivered, Difference          string
}

// addPushEnd notes the failures of pushes, in their order, and the differences that comparisons found.
func (x *pass) addPushEnd(r *row, _ *content, _ error) {
	if r.subject != pushFailed && r.subject != pushCompared {
		return
	}
	var c pushContent
	if err := json.Unmarshal(r.body, &c); err != nil {
		x.pushFailures.fault("%s cannot be read: %v", x.at(r.position), err)
		return
	}
	x.pushFailures.n++
	if r.subject == pushCompared {
		of := comparison{c.Provider, c.Customer, c.PeriodKey, c.Total, c.Delivered}
		difference := new(big.Int).Sub(bigOf(c.Total), bigOf(c.Delivered))
		x.pushFailures.expect(difference.Sign() != 0 && difference.String() == c.Difference, "%s: %s less %s is no difference of %s",
			x.at(r.position), c.Total, c.Delivered, c.Difference)
		x.pushEnds.differences[of] = true
		return
	}
	all := append(x.pushEnds.failures[c.PushID],
		pushFailure{pushRow{r.tenant, c.Feature, c.PeriodKey, c.Snapshot, c.Amount, c.Provider, c.Key, c.Identifier, c.Attempt}, c.Code})
	x.pushEnds.failures[c.PushID] = all
	key := "b/" + c.PushID.String() + "/failed/" + strconv.Itoa(len(all))
	x.pushFailures.expect(string(r.key) == key, "%s is failure %d of its delivery, and has the key %.80q", x.at(r.position), len(all),
		r.key)
}

const (
	failedPushesSQL = `SELECT tenant_id, id, feature, period_key, snapshot, amount::text, provider, key, identifier, attempts, state,
		failures, last_code, next_at IS NULL FROM pushes` + ofPartition

	// The last comparisons, with the tenants that have pushes in their windows.
	comparisonsSQL = `SELECT c.provider, c.customer, c.month, c.total::text, c.delivered::text, (SELECT array_agg(DISTINCT p.tenant_id)
		FROM pushes p
  WHERE p.provider = c.provider AND p.customer = c.customer AND p.event = c.event AND to_char(p.counted_at AT TIME ZONE 'UTC',
  'YYYY-MM') = c.month)
 FROM push_comparisons c WHERE c.total <> c.delivered`
)

// comparePushEnds compares the pushes with their failures, and the comparisons with the differences in the log.
func (x *pass) comparePushEnds(ctx context.Context, tx pgx.Tx) error {
	var p pushRow
	var id uuid.UUID
	var state, code string
	var failures int
	var waits bool
	into := []any{&p.tenant, &id, &p.feature, &p.period, &p.snapshot, &p.amount, &p.provider, &p.key, &p.identifier, &p.attempt, &state,
		&failures, &code, &waits}
	err := each(ctx, tx, failedPushesSQL, []any{x.p}, into, func() error {
		x.compareFailures(id, p, state, failures, code, waits)
		delete(x.pushEnds.failures, id)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the failures of Stripe deliveries: %w", err)
	}
	for id := range x.pushEnds.failures {
		x.pushFailures.fault("the failed Stripe delivery %s is not in the table", id)
	}
	var c comparison
	var tenants []uuid.UUID
	err = each(ctx, tx, comparisonsSQL, nil, []any{&c.provider, &c.customer, &c.month, &c.total, &c.delivered, &tenants}, func() error {
		x.compareDifference(c, tenants)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the comparisons with providers: %w", err)
	}
	return nil
}

// compareFailures compares a push with the events of its failures. A push that failed, or that is unknown for ever, has one.
func (x *pass) compareFailures(id uuid.UUID, p pushRow, state string, failures int, code string, waits bool) {
	all := x.pushEnds.failures[id]
	x.pushFailures.expect(len(all) == failures, "the Stripe delivery %s has failed %d times, in the log %d", id, failures, len(all))
	for _, f := range all {
		attempt := f.row.attempt
		x.pushFailures.expect(attempt <= p.attempt, "the Stripe delivery %s has failed at its attempt %d, and has %d", id, attempt,
			p.attempt)
		f.row.attempt = p.attempt
		if wasSplit(f.row.amount, p.amount) {
			f.row.amount = p.amount
		}
		x.pushFailures.expect(f.row == p, "the Stripe delivery %s is %+v, its failure in the log %+v", id, p, f.row)
	}
	ended := state == "FAILED" || state == "UNKNOWN" && waits
	x.pushFailures.expect(!ended || len(all) > 0 && all[len(all)-1].code == code,
		"the Stripe delivery %s is %s with the code %.60q, its %d failures in the log do not end with it", id, state, code, len(all))
}

// pushDigits is the number of digits that providers accept.
const pushDigits = 15

// wasSplit reports whether a push that failed with an amount of too many digits was split by a retry: it has the greatest amount of that
// sign since. The other parts are pushes of their own, and all of them are compared with the billable amounts.
func wasSplit(failed, is string) bool {
	sign, digits := "", strings.TrimPrefix(failed, "-")
	if digits != failed {
		sign = "-"
	}
	return len(digits) > pushDigits && is == sign+strings.Repeat("9", pushDigits)
}

// compareDifference compares the last comparison of a customer's meter with the log, if all its tenants are of this partition.
func (x *pass) compareDifference(c comparison, tenants []uuid.UUID) {
	for _, tenant := range tenants {
		if partitionOf(tenant) != x.p {
			return
		}
	}
	x.pushFailures.expect(len(tenants) == 0 || x.pushEnds.differences[c],
		"the provider's total for %.60s in %s is %s, delivered are %s; the log has no such difference", c.customer, c.month, c.total,
		c.delivered)
}
