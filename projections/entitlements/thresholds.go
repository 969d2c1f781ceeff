package entitlements

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// METERED features have no account: their thresholds are crossed here, by the rows of the generation that answers the tenant's reads. A
// rebuild crosses none.

// step is a change of the used amount of a METERED feature by an event.
type step struct {
	by     *events.Envelope
	amount int64
}

// count adds an amount of a verdict, or of admitted usage, to a tenant's usage.
func (f *State) count(e *events.Envelope, featureType, feature, periodKey string, amount int64) {
	f.Used(e.TenantID, feature, periodKey, amount)
	key := usedKey{e.TenantID, feature, periodKey}
	if f.steps != nil {
		f.steps[key] = append(f.steps[key], step{e, amount})
	}
	if featureType != domain.FeatureMetered {
		return
	}
	if f.metered == nil {
		f.metered = map[usedKey][]step{}
	}
	f.metered[key] = append(f.metered[key], step{e, amount})
}

// readWatched reads the used amounts that a batch has changed, with the thresholds known at one of its events. $5 is the position of the
// first event of each. A tenant without thresholds has no row, and so has one that another generation answers. LATERAL with LIMIT forces
// one look-up for each.
const readWatched = `
SELECT k.n, u.used::text, t.id, t.feature, t.percent, t.amount, t.position, t.removed
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bigint[]) WITH ORDINALITY AS k (tenant_id, feature, period_key, first, n)
CROSS JOIN LATERAL (
  SELECT * FROM (
    SELECT p.id, p.feature, p.percent, p.amount, p.position, p.removed FROM thresholds p WHERE p.tenant_id = k.tenant_id
    AND p.removed IS NULL
    UNION ALL
    SELECT r.id, r.feature, r.percent, r.amount, r.position, r.removed FROM thresholds r WHERE r.tenant_id = k.tenant_id
    AND r.removed > k.first) known
  WHERE coalesce(known.feature, k.feature) = k.feature LIMIT 10000) t
CROSS JOIN LATERAL (
  SELECT p.generation FROM projection_pointers p
  WHERE p.live AND p.projection = 'entitlement_reads' AND p.tenant_id IN (k.tenant_id, '00000000-0000-0000-0000-000000000000')
  ORDER BY p.tenant_id DESC LIMIT 1) live
CROSS JOIN LATERAL (
  SELECT u.used FROM entitlement_usage u
  WHERE u.generation = live.generation AND u.tenant_id = k.tenant_id AND u.feature = k.feature AND u.period_key = k.period_key LIMIT 1) u
WHERE live.generation = $1::int
ORDER BY k.n, t.position`

// watched is a METERED feature in a period whose used amount a batch has changed, with thresholds.
type watched struct {
	usedKey
	used       big.Int // after the batch
	thresholds []known
}

// known is a threshold that usage behind its position and before its removal crosses.
type known struct {
	domain.DefinedThreshold
	removed *int64
}

// at reports whether a threshold is known at a position.
func (k *known) at(position int64) bool {
	return k.Position.Number < position && (k.removed == nil || *k.removed > position)
}

// keys lists the METERED features of the batch in order, as the parameters of readWatched.
func (f *State) watching(in projections.Generation) (keys []usedKey, args []any) {
	if len(f.metered) == 0 {
		return nil, nil
	}
	var tenants []uuid.UUID
	var features, periods []string
	var first []int64
	keys = slices.SortedFunc(maps.Keys(f.metered), usedKey.compare)
	for _, k := range keys {
		tenants, features, periods, first = append(tenants, k.tenant), append(features, k.feature), append(periods, k.periodKey),
			append(first, f.metered[k][0].by.Position.Number)
	}
	return keys, []any{in.Number, tenants, features, periods, first}
}

func scanWatched(rows pgx.Rows, keys []usedKey) (list []*watched, err error) {
	var n int64
	var used string
	var t known
	last := int64(0)
	_, err = pgx.ForEachRow(rows, []any{&n, &used, &t.ID, &t.Feature, &t.Percent, &t.Amount, &t.Position.Number, &t.removed}, func() error {
		if n != last {
			w := &watched{usedKey: keys[n-1]}
			if _, ok := w.used.SetString(used, 10); !ok {
				return fmt.Errorf("the usage of %s in %s is no sum of integers: %s", w.feature, w.periodKey, used)
			}
			list, last = append(list, w), n
		}
		w := list[len(list)-1]
		w.thresholds = append(w.thresholds, t)
		t.removed = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read thresholds: %w", err)
	}
	return list, nil
}

const readLimits = `SELECT tenant_id, from_position, snapshot::text FROM subscription_history WHERE tenant_id = ANY ($1::uuid[])
	ORDER BY tenant_id, from_position`

// limits reads the subscriptions of the tenants whose thresholds are percentages.
func limits(ctx context.Context, tx pgx.Tx, list []*watched) (map[uuid.UUID]domain.History, error) {
	tenants := []uuid.UUID{}
	for _, w := range list {
		if slices.ContainsFunc(w.thresholds, func(t known) bool { return t.Percent != nil }) && !slices.Contains(tenants, w.tenant) {
			tenants = append(tenants, w.tenant)
		}
	}
	return historiesOf(ctx, tx, tenants)
}

func historiesOf(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (map[uuid.UUID]domain.History, error) {
	if len(tenants) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, readLimits, tenants)
	if err != nil {
		return nil, fmt.Errorf("read limits: %w", err)
	}
	histories := map[uuid.UUID]domain.History{}
	var tenant uuid.UUID
	var e domain.HistoryEntry
	var snapshot *string
	_, err = pgx.ForEachRow(rows, []any{&tenant, &e.FromPosition, &snapshot}, func() error {
		e.Subscription = nil
		if snapshot != nil {
			e.Subscription = new(domain.Subscription)
			if json.Unmarshal([]byte(*snapshot), e.Subscription) != nil {
				e.Subscription = nil // usage of the tenant has no verdict
			}
		}
		histories[tenant] = append(histories[tenant], e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read limits: %w", err)
	}
	return histories, nil
}

// crossings returns the events of the thresholds that the batch crosses, in the order of their causes.
func (h *Handler) crossings(ctx context.Context, tx pgx.Tx, f *State, list []*watched) ([]events.Pending, error) {
	of, err := limits(ctx, tx, list)
	if err != nil {
		return nil, err
	}
	type crossing struct {
		by      *events.Envelope
		pending events.Pending
	}
	var found []crossing
	for _, w := range list {
		steps := f.metered[w.usedKey]
		before := new(big.Int).Set(&w.used)
		for _, s := range steps {
			before.Sub(before, big.NewInt(s.amount))
		}
		for _, s := range steps {
			after := new(big.Int).Add(before, big.NewInt(s.amount))
			position := s.by.Position.Number
			var present []domain.Threshold
			for i := range w.thresholds {
				if t := &w.thresholds[i]; t.at(position) {
					present = append(present, t.Threshold)
				}
			}
			for _, c := range domain.Crossings(present, w.feature, of[w.tenant].LimitOf(position, w.feature, w.periodKey), before, after) {
				found = append(found, crossing{s.by, h.crossed(s.by, w, &c)})
			}
			before = after
		}
	}
	slices.SortStableFunc(found, func(a, b crossing) int {
		return cmp.Or(cmp.Compare(a.by.Position.Partition, b.by.Position.Partition),
			cmp.Compare(a.by.Position.Number, b.by.Position.Number))
	})
	followUps := make([]events.Pending, len(found))
	for i := range found {
		followUps[i] = found[i].pending
	}
	return followUps, nil
}

func (h *Handler) crossed(by *events.Envelope, w *watched, c *domain.Crossing) events.Pending {
	p := projections.FollowUp(by, h.NewID(), events.ThresholdCrossed, c.Event(w.feature, w.periodKey), events.GroupEntitlements)
	p.DedupeKey, p.OccurredAt = events.KeyThreshold(c.Threshold.ID, w.feature, w.periodKey, c.Value), by.RecordedAt
	return p
}
