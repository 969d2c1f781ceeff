package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// pushRow is a row of the table, or an event of a delivery.
type pushRow struct {
	tenant          uuid.UUID
	feature, period string
	snapshot        int
	amount          string
	provider        string
	key, identifier string
	attempt         int
}

const (
	deliveriesSQL = `SELECT tenant_id, coalesce(body ->> 'pushId', ''), body ->> 'feature', body ->> 'periodKey',
		(body ->> 'snapshot')::int, body ->> 'amount', body ->> 'provider', body ->> 'key',
 body ->> 'identifier', (body ->> 'attempt')::int FROM event_log_rows WHERE partition = $1 AND topic = 7 AND subject = 76`

	pushesSQL = `SELECT tenant_id, id::text, feature, period_key, snapshot, amount::text, provider, key, identifier, attempts, n, state
		FROM pushes` + ofPartition

	// Periods of tenants with billing that a saga has pushed, with the snapshots of their sagas. One that is open may not have stored its
	// pushes yet. One that ended in its first step found no billing.
	pushedPeriodsSQL = `SELECT s.tenant_id, split_part(s.key, '/', 2), bool_or(s.ended_at IS NULL AND s.step = 'plan'),
		array_agg(DISTINCT split_part(s.key, '/', 3)::int) FROM sagas s
 WHERE s.kind = 'billing_push' AND EXISTS (SELECT FROM tenants t WHERE t.id = s.tenant_id AND t.billing_provider IS NOT NULL)
  AND s.tenant_id = ANY ($1) AND (s.ended_at IS NULL OR s.step <> 'plan') GROUP BY 1, 2`
)

// comparePushes compares the pushes with the deliveries in the log, and their sums with what is billable.
func (x *pass) comparePushes(ctx context.Context, tx pgx.Tx) error {
	delivered, err := x.deliveries(ctx, tx)
	if err != nil {
		return fmt.Errorf("read the delivered Stripe deliveries: %w", err)
	}
	pushed := map[periodKey]map[string]*big.Int{}
	var p pushRow
	var id, state string
	var n int
	into := []any{&p.tenant, &id, &p.feature, &p.period, &p.snapshot, &p.amount, &p.provider, &p.key, &p.identifier, &p.attempt, &n, &state}
	err = each(ctx, tx, pushesSQL, []any{x.p}, into, func() error {
		x.pushes.n++
		x.comparePush(id, &p, n, state, delivered)
		delete(delivered, id)
		k := periodKey{p.tenant, p.period}
		if pushed[k] == nil {
			pushed[k] = map[string]*big.Int{}
		}
		addTo(pushed[k], p.feature, p.amount)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the Stripe deliveries: %w", err)
	}
	for id := range delivered {
		x.pushes.fault("the delivered Stripe delivery %.40s is not in the table", id)
	}
	return x.comparePushSums(ctx, tx, pushed)
}

func addTo(sums map[string]*big.Int, feature, amount string) {
	if sums[feature] == nil {
		sums[feature] = new(big.Int)
	}
	sums[feature].Add(sums[feature], bigOf(amount))
}

// deliveries returns the deliveries of the partition by push.
func (x *pass) deliveries(ctx context.Context, tx pgx.Tx) (map[string]pushRow, error) {
	found := map[string]pushRow{}
	var p pushRow
	var id string
	into := []any{&p.tenant, &id, &p.feature, &p.period, &p.snapshot, &p.amount, &p.provider, &p.key, &p.identifier, &p.attempt}
	return found, each(ctx, tx, deliveriesSQL, []any{x.p}, into, func() error {
		_, twice := found[id]
		x.pushes.expect(!twice, "the Stripe delivery %.40s is delivered twice", id)
		found[id] = p
		return nil
	})
}

// comparePush compares a row with its key and its delivery.
func (x *pass) comparePush(id string, p *pushRow, n int, state string, delivered map[string]pushRow) {
	key := p.tenant.String() + ":" + p.feature + ":" + p.period + ":" + strconv.Itoa(p.snapshot)
	if n > 0 {
		key += ":a" + strconv.Itoa(n)
	}
	sum := sha256.Sum256([]byte(key))
	x.pushes.expect(p.key == key && p.identifier == "mp_"+hex.EncodeToString(sum[:20]),
		"the Stripe delivery %s has the key %.200s and the identifier %.60s; they do not follow from its members", id, p.key, p.identifier)
	event, ok := delivered[id]
	x.pushes.expect(ok == (state == "DELIVERED"), "the Stripe delivery %s is %s; the log has a delivery: %v", id, state, ok)
	x.pushes.expect(!ok || event == *p, "the Stripe delivery %s is %+v, its delivery in the log %+v", id, *p, event)
}

// comparePushSums compares the pushes of each closed period with its billable figures. A period without a push and
// without a saga of its last snapshot was not pushed: its tenant had no billing then, and got it back more than 35 days after the period.
func (x *pass) comparePushSums(ctx context.Context, tx pgx.Tx, pushed map[periodKey]map[string]*big.Int) error {
	seen := map[uuid.UUID]bool{}
	tenants := []uuid.UUID{}
	for k := range x.periods.of {
		if !seen[k.tenant] {
			seen[k.tenant], tenants = true, append(tenants, k.tenant)
		}
	}
	var k periodKey
	var planning bool
	var snapshots []int
	return each(ctx, tx, pushedPeriodsSQL, []any{tenants}, []any{&k.tenant, &k.period, &planning, &snapshots}, func() error {
		period := x.periods.of[k]
		if period == nil {
			x.pushes.fault("%s has Stripe deliveries, and was never closed", k)
			return nil
		}
		snapshot := period.present()
		if snapshot == nil || pushed[k] == nil && !slices.Contains(snapshots, snapshot.number) {
			return nil
		}
		if planning {
			x.pushes.add(1, "closed periods whose Stripe deliveries are not stored yet")
			return nil
		}
		billable := map[string]*big.Int{}
		for _, l := range snapshot.lines {
			addTo(billable, l.Feature, l.Amount)
		}
		for _, a := range x.periods.adjusted.bySnapshot[snapshot] {
			if a.state == "APPROVED" {
				addTo(billable, a.of.feature, a.amount)
			}
		}
		x.compareBillable(k, billable, pushed[k])
		return nil
	})
}

func (x *pass) compareBillable(k periodKey, billable, pushed map[string]*big.Int) {
	none := new(big.Int)
	for feature, amount := range billable {
		is := pushed[feature]
		if is == nil {
			is = none
		}
		x.pushes.expect(is.Cmp(amount) == 0, "%s of %s: %s is billable, and the Stripe deliveries are %s", feature, k, amount, is)
	}
	for feature, amount := range pushed {
		x.pushes.expect(billable[feature] != nil || amount.Sign() == 0, "%s of %s: no amount is billable, and the Stripe deliveries are %s",
			feature, k, amount)
	}
}
