package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// crossings replays the used amounts of a partition, and the thresholds that they cross: those of accounts at each event that changes one,
// those of METERED features at each event up to the checkpoint of the entitlement reads.
type crossings struct {
	used       map[figure]*big.Int
	thresholds map[uuid.UUID][]threshold // of each tenant, by the log
	expected   map[crossingKey]*crossing
	discards   map[int64]discard // of METERED features, by the position of the event that discards
	failed     map[figure]bool   // features whose usage the entitlement reads could not fold at first
	metered    bool              // the crossings of METERED features are compared
	// used amounts at the changes of limits and thresholds of tenants with thresholds, by the event
	changes map[uuid.UUID]map[figure]string
	upTo    int64
	seen    map[crossingKey]bool  // crossings of the log
	above   map[crossingKey]place // those that a change owes, with its position
}

// threshold is one of a tenant, by its last event.
type threshold struct {
	ID              uuid.UUID
	Feature         string
	Percent, Amount int64
	Removed         bool
	at              int64
}

type crossingKey struct {
	tenant uuid.UUID
	key    string
}

// crossing is the rise of a used amount to a threshold.
type crossing struct {
	by, threshold  uuid.UUID
	at             int64
	limit          *int64
	percent, value int64
	before, after  string
	found          bool
}

// meteredDiscardsSQL reads the verdicts of METERED features in discarded dead letters, and meteredFailedSQL the features that the
// entitlement reads could not fold.
const (
	meteredDiscardsSQL = `SELECT c.position, v.tenant_id, v.payload ->> 'feature', v.payload ->> 'periodKey', v.payload ->> 'amount'
		FROM event_log_rows c
 JOIN event_log_rows f ON f.partition = c.partition AND f.tenant_id = c.tenant_id AND f.dedupe_key = 'e/' || (c.payload ->> 'deadLetterId')
 JOIN log_origins o ON o.id = f.origin
 JOIN event_log_rows v ON v.partition = f.partition AND v.position = (f.payload ->> 'sourcePosition')::bigint
 WHERE c.partition = $1 AND c.subject = 15 AND c.payload ->> 'status' = 'DISCARDED'
  AND (f.subject = 10 OR f.subject = 11 AND o.actor_id = 'meterplex-usage-aggregator')
  AND v.subject = 2 AND v.payload ->> 'featureType' = 'METERED' AND v.payload ->> 'admitted' IS NULL`
	meteredFailedSQL = `SELECT v.tenant_id, coalesce(v.payload ->> 'feature', ''), coalesce(v.payload ->> 'periodKey',
		v.payload -> 'admitted' ->> 'periodKey', '') FROM event_log_rows f
 JOIN log_origins o ON o.id = f.origin
 JOIN event_log_rows v ON v.partition = f.partition AND v.position = (f.payload ->> 'sourcePosition')::bigint
 WHERE f.partition = $1 AND f.subject = 11 AND o.actor_id = 'meterplex-entitlement-reads'`
	oneVersionSQL = `SELECT NOT EXISTS (SELECT FROM projection_generations WHERE projection = 'entitlement_reads' AND fold_version <> $1)`
)

func newCrossings(upTo int64) crossings {
	return crossings{used: map[figure]*big.Int{}, thresholds: map[uuid.UUID][]threshold{}, expected: map[crossingKey]*crossing{},
		discards: map[int64]discard{}, failed: map[figure]bool{}, changes: map[uuid.UUID]map[figure]string{}, upTo: upTo,
		seen: map[crossingKey]bool{}, above: map[crossingKey]place{}}
}

func readCrossings(ctx context.Context, tx pgx.Tx, p int16, upTo int64) (crossings, error) {
	c := newCrossings(upTo)
	var position int64
	var d discard
	err := each(ctx, tx, meteredDiscardsSQL, []any{p}, []any{&position, &d.of.tenant, &d.of.feature, &d.of.period, &d.amount},
		func() error {
			c.discards[position] = d
			return nil
		})
	if err == nil {
		var f figure
		err = each(ctx, tx, meteredFailedSQL, []any{p}, []any{&f.tenant, &f.feature, &f.period}, func() error {
			c.failed[f] = true
			return nil
		})
	}
	if err == nil {
		err = tx.QueryRow(ctx, oneVersionSQL, entitlementsV1).Scan(&c.metered)
	}
	if err != nil {
		return c, fmt.Errorf("read the usage of METERED features: %w", err)
	}
	return c, nil
}

func (x *pass) addCrossing(r *row, s *content, err error) {
	c := &x.crossings
	switch r.subject {
	case thresholdChanged:
		x.addThreshold(r)
		x.addChange(r)
		return
	case subscriptionCreated, subscriptionChanged:
		x.addChange(r)
		return
	case thresholdCrossed:
		x.compareCrossing(r)
		return
	case accountReconciled:
		x.crossReconciled(r)
		return
	}
	if err != nil {
		return // a fault of other checks
	}
	switch r.subject {
	case validated:
		if string(s.Admitted) != "true" {
			x.cross(r, figure{tenant: r.tenant, feature: s.Feature, period: s.PeriodKey}, s.FeatureType, s.Amount.String(), 1)
		}
	case admitted:
		if g, err := admissionOf(s); err == nil {
			x.cross(r, figure{tenant: r.tenant, feature: s.Feature, period: g.PeriodKey}, g.FeatureType, s.Amount.String(), 1)
		}
	case letterClosed:
		if d, ok := x.accounts.discards[r.position]; ok {
			x.cross(r, d.of, "QUOTA", d.amount, -1)
		} else if d, ok := c.discards[r.position]; ok {
			x.cross(r, d.of, "METERED", d.amount, -1)
		}
	}
}

// addThreshold notes a threshold, or its removal.
func (x *pass) addThreshold(r *row) {
	t := threshold{at: r.position}
	if err := json.Unmarshal(r.body, &t); err != nil {
		x.thresholdCrossings.fault("%s has no readable threshold: %v", x.at(r.position), err)
		return
	}
	list := x.crossings.thresholds[r.tenant]
	i := slices.IndexFunc(list, func(o threshold) bool { return o.ID == t.ID })
	switch {
	case i < 0:
		x.thresholdCrossings.expect(!t.Removed && (t.Percent > 0) != (t.Amount > 0),
			"%s removes a threshold that was never defined, or defines one without a value", x.at(r.position))
		x.crossings.thresholds[r.tenant] = append(list, t)
	default:
		x.thresholdCrossings.expect(t.Removed && !list[i].Removed, "%s defines a threshold again, or removes it twice", x.at(r.position))
		list[i].Removed = true
		// A change that is folded after the removal crosses it no longer.
		maps.DeleteFunc(x.crossings.above, func(k crossingKey, _ place) bool {
			return strings.HasPrefix(k.key, "n/"+t.ID.String()+"/")
		})
	}
}

// addChange notes the used amounts of a tenant at a change after which they may be above thresholds.
func (x *pass) addChange(r *row) {
	c := &x.crossings
	if len(c.thresholds[r.tenant]) == 0 {
		return
	}
	used := map[figure]string{}
	for of, n := range c.used {
		if of.tenant == r.tenant {
			used[of] = n.String()
		}
	}
	c.changes[r.id] = used
	if c.metered && r.position <= c.upTo {
		x.expectAbove(r)
	}
}

// expectAbove notes the crossings that a change owes: of the defined threshold, or of the percentages of the limits in force, in the
// periods of its time.
func (x *pass) expectAbove(r *row) {
	c := &x.crossings
	for feature, e := range x.accounts.present[r.tenant].of {
		of := figure{tenant: r.tenant, feature: feature, period: e.periodAt(moment(r.recorded))}
		used := c.used[of]
		if used == nil || e.Type == "BOOLEAN" || c.failed[of] {
			continue
		}
		for _, t := range c.thresholds[r.tenant] {
			concerned := t.Percent > 0
			if r.subject == thresholdChanged {
				concerned = t.at == r.position
			}
			value := t.value(e.Limit)
			key := crossingKey{r.tenant, fmt.Sprintf("n/%s/%s/%s/%d", t.ID, feature, of.period, value)}
			if concerned && !t.Removed && (t.Feature == "" || t.Feature == feature) && value > 0 && used.Cmp(big.NewInt(value)) >= 0 &&
				!c.seen[key] {
				c.above[key] = x.at(r.position)
			}
		}
	}
}

// compareAbove compares a crossing without a rise with the used amount at its cause.
func (x *pass) compareAbove(r *row, is *crossed) {
	c, of := &x.crossings, figure{tenant: r.tenant, feature: is.Feature, period: is.PeriodKey}
	i := slices.IndexFunc(c.thresholds[r.tenant], func(t threshold) bool { return t.ID == is.ThresholdID })
	used, changed := c.changes[r.cause]
	n, ok := new(big.Int).SetString(is.Before, 10)
	x.thresholdCrossings.expect(i >= 0 && changed && ok && n.Cmp(big.NewInt(is.Amount)) >= 0 && is.Before == is.After &&
		used[of] == is.Before && c.thresholds[r.tenant][i].value(is.Limit) == is.Amount,
		"%s crosses %.200s at %.40s by %s, which changes no limit and no threshold to %d or less at this amount", x.at(r.position), r.key,
		is.Before, r.cause, is.Amount)
	key := crossingKey{r.tenant, string(r.key)}
	if c.expected[key] == nil {
		c.expected[key] = &crossing{}
	}
	c.expected[key].found = true
}

// crossReconciled changes an account as a repair did: to the sums of the log.
func (x *pass) crossReconciled(r *row) {
	var s struct {
		Feature, PeriodKey string
		Used               struct{ Was, Is json.Number }
	}
	was, is := new(big.Int), new(big.Int)
	if json.Unmarshal(r.body, &s) != nil || len(s.Used.Was) > maxDigits || len(s.Used.Is) > maxDigits {
		return
	}
	if _, ok := was.SetString(s.Used.Was.String(), 10); !ok {
		return
	}
	if _, ok := is.SetString(s.Used.Is.String(), 10); !ok {
		return
	}
	// The table had another amount since an unknown event: only the repair itself is compared.
	of := figure{tenant: r.tenant, feature: s.Feature, period: s.PeriodKey}
	x.crossings.used[of] = was
	x.cross(r, of, "QUOTA", is.Sub(is, was).String(), 1)
}

// cross adds an amount to a used amount, and expects the crossings that follow.
func (x *pass) cross(r *row, of figure, featureType, text string, sign int64) {
	if len(text) > maxDigits {
		return // a fault of other checks
	}
	amount, ok := new(big.Int).SetString(text, 10)
	if !ok || featureType != "QUOTA" && featureType != "METERED" {
		return
	}
	c := &x.crossings
	before := c.used[of]
	if before == nil {
		before = new(big.Int)
	}
	after := new(big.Int).Add(before, amount.Mul(amount, big.NewInt(sign)))
	c.used[of] = after
	if featureType == "METERED" && (!c.metered || c.failed[of] || r.position > c.upTo) {
		return
	}
	var limit *int64
	if e, ok := x.accounts.present[r.tenant].of[of.feature]; ok && e.resets(of.period) {
		limit = e.Limit
	}
	for _, t := range c.thresholds[r.tenant] {
		value := t.value(limit)
		if t.Removed || t.Feature != "" && t.Feature != of.feature || value < 1 || before.Cmp(big.NewInt(value)) >= 0 ||
			after.Cmp(big.NewInt(value)) < 0 {
			continue
		}
		key := crossingKey{r.tenant, fmt.Sprintf("n/%s/%s/%s/%d", t.ID, of.feature, of.period, value)}
		if c.expected[key] == nil {
			c.expected[key] = &crossing{by: r.id, threshold: t.ID, at: r.position, limit: limit, percent: t.Percent, value: value,
				before: before.String(), after: after.String()}
		}
	}
}

// value is the first integer that is the percentage of the limit or more; of the limit 0, the first one above it.
func (t *threshold) value(limit *int64) int64 {
	if t.Percent == 0 {
		return t.Amount
	}
	if limit == nil {
		return 0
	}
	if *limit == 0 {
		return 1
	}
	whole, rest := new(big.Int).DivMod(new(big.Int).Mul(big.NewInt(*limit), big.NewInt(t.Percent)), big.NewInt(100), new(big.Int))
	return whole.Int64() + int64(rest.Sign())
}

// crossed is the payload of a crossing.
type crossed struct {
	ThresholdID           uuid.UUID
	Feature, PeriodKey    string
	Percent, Amount       int64
	Limit                 *int64
	Before, After, Reason string
}

// Reasons of crossings without a rise.
const (
	limitChanged     = "limit_changed"
	thresholdDefined = "threshold_defined"
)

// compareCrossing compares a crossing in the log with the one that follows from the events before it.
func (x *pass) compareCrossing(r *row) {
	x.thresholdCrossings.n++
	var is crossed
	if err := json.Unmarshal(r.body, &is); err != nil {
		x.thresholdCrossings.fault("%s has no readable crossing: %v", x.at(r.position), err)
		return
	}
	key := crossingKey{r.tenant, string(r.key)}
	x.crossings.seen[key] = true
	delete(x.crossings.above, key)
	if is.Reason == limitChanged || is.Reason == thresholdDefined {
		x.compareAbove(r, &is)
		return
	}
	want := x.crossings.expected[key]
	of := figure{tenant: r.tenant, feature: is.Feature, period: is.PeriodKey}
	switch {
	case want == nil && !x.crossings.metered && !x.hasAccount(of), want == nil && x.crossings.failed[of]:
		x.thresholdCrossings.add(1, "of METERED features not compared")
	case want == nil:
		x.thresholdCrossings.fault("%s crosses %.200s, which follows from no event before it", x.at(r.position), r.key)
	default:
		same := want.by == r.cause && want.threshold == is.ThresholdID && want.percent == is.Percent && want.value == is.Amount &&
			sameLimit(want.limit, is.Limit) && want.before == is.Before && want.after == is.After
		x.thresholdCrossings.expect(!want.found, "%s crosses %.200s a second time", x.at(r.position), r.key)
		x.thresholdCrossings.expect(same, "%s crosses %.200s from %.40s to %.40s by %s of the limit %s; the log has %s from %s to %s by "+
			"%s of the limit %s", x.at(r.position), r.key, is.Before, is.After, r.cause, limitOf(is.Limit),
			x.at(want.at), want.before, want.after, want.by, limitOf(want.limit))
		want.found = true
	}
}

func (x *pass) hasAccount(of figure) bool { return x.accounts.sums[of] != nil }

func (x *pass) endCrossings() {
	for key, c := range x.crossings.expected {
		x.thresholdCrossings.expect(c.found, "%s rises from %s to %s, and %.200s is not crossed", x.at(c.at), c.before, c.after, key.key)
	}
	for key, at := range x.crossings.above {
		x.thresholdCrossings.fault("%s leaves a used amount above a threshold, and %.200s is not crossed", at, key.key)
	}
}
