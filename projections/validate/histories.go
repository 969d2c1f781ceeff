package validate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// HistoryReader reads histories of tenants, and caches those that were read with the heads of their partitions locked: such a history is
// true for as long as the head names the same events of the catalogue and of billing as the last, or later ones are known to be of other
// tenants.
type HistoryReader struct {
	// Marks, if set, returns how far the catalogue is known. It must not block.
	Marks func() *projections.CatalogueMarks

	snapshots snapshots
	cached    cachedHistories
}

// Known returns the cached histories of tenants, however old.
func (h *HistoryReader) Known(tenants []uuid.UUID) map[uuid.UUID]domain.TenantHistory {
	h.cached.mu.Lock()
	defer h.cached.mu.Unlock()
	known := make(map[uuid.UUID]domain.TenantHistory, len(tenants))
	for _, t := range tenants {
		if k, ok := h.cached.known[t]; ok && k.err == nil {
			known[t] = k.TenantHistory
		}
	}
	return known
}

// Of returns the histories of tenants as of the heads that the caller has locked. A tenant whose history cannot be
// read is missing.
func (h *HistoryReader) Of(ctx context.Context, query projections.Query, tenants []uuid.UUID,
	heads []events.InlineStretch) (map[uuid.UUID]domain.TenantHistory, error) {
	found, err := h.of(ctx, query, tenants, heads)
	if err != nil {
		return nil, err
	}
	readable := make(map[uuid.UUID]domain.TenantHistory, len(found))
	for t, k := range found {
		if k.err == nil {
			readable[t] = k.TenantHistory
		}
	}
	return readable, nil
}

// of is Of, with the error of each history that cannot be read.
func (h *HistoryReader) of(ctx context.Context, query projections.Query, tenants []uuid.UUID,
	heads []events.InlineStretch) (map[uuid.UUID]history, error) {
	var marks *projections.CatalogueMarks
	if h.Marks != nil {
		marks = h.Marks()
	}
	histories, missing := h.cached.of(tenants, heads, marks)
	if len(missing) == 0 {
		return histories, nil
	}
	read, err := h.read(ctx, query, missing)
	if err != nil {
		return nil, err
	}
	h.cached.store(read, heads)
	for t, k := range read {
		histories[t] = k
	}
	return histories, nil
}

// readHistories reads the changes of subscriptions, of periods and of policies, and thresholds, each in the order of positions.
const readHistories = `
SELECT tenant_id, from_position, 'subscription', effective_from, snapshot::text, NULL, NULL::bigint, NULL::uuid, NULL::bigint
FROM subscription_history WHERE tenant_id = ANY ($1::uuid[])
UNION ALL
SELECT tenant_id, position, change, NULL, NULL, period_key, snapshot, NULL, NULL FROM period_changes WHERE tenant_id = ANY ($1::uuid[])
UNION ALL
SELECT tenant_id, from_position, 'policy', NULL, NULL, late_usage, NULL, NULL, NULL FROM tenant_policies WHERE tenant_id = ANY ($1::uuid[])
UNION ALL
SELECT tenant_id, position, 'threshold', NULL, NULL, feature, percent, id, amount FROM thresholds WHERE tenant_id = ANY ($1::uuid[])
AND removed IS NULL
ORDER BY 1, 2`

// history is a tenant's history; if err is set, only this tenant's events fail.
type history struct {
	domain.TenantHistory
	err error
}

// change is a row of readHistories.
type change struct {
	tenant        uuid.UUID
	position      int64
	kind          string
	effectiveFrom *time.Time
	snapshot      *string // of a subscription; nil: the tenant has none from then on
	name          *string // the key of a period or of a feature, or a policy
	number        *int64  // of the snapshot of a period; a percentage
	threshold     *uuid.UUID
	amount        *int64
}

// add adds a change, which is later than those before.
func (h *history) add(c *change, snapshots *snapshots) {
	switch c.kind {
	case "subscription":
		s, err := snapshots.decode(c.snapshot)
		h.History = append(h.History, domain.HistoryEntry{FromPosition: c.position, EffectiveFrom: *c.effectiveFrom, Subscription: s})
		h.err = errors.Join(h.err, err)
	case "policy":
		h.Policies = append(h.Policies, domain.LatePolicy{FromPosition: c.position, LateUsage: *c.name})
	case "threshold":
		h.Thresholds = append(h.Thresholds, domain.Threshold{ID: *c.threshold, TenantID: c.tenant, Feature: c.name, Percent: c.number,
			Amount: c.amount})
	default:
		h.Changes = append(h.Changes, domain.PeriodChange{Position: c.position, PeriodKey: *c.name, Snapshot: int(*c.number),
			Change: c.kind})
	}
}

// Read reads the history of a tenant.
func (h *HistoryReader) Read(ctx context.Context, query projections.Query, tenant uuid.UUID) (domain.TenantHistory, error) {
	read, err := h.read(ctx, query, []uuid.UUID{tenant})
	if err != nil {
		return domain.TenantHistory{}, err
	}
	return read[tenant].TenantHistory, read[tenant].err
}

// read reads the histories of tenants. Rows known at a position were
// committed before the event at that position, so all are visible.
func (h *HistoryReader) read(ctx context.Context, query projections.Query, tenants []uuid.UUID) (map[uuid.UUID]history, error) {
	histories := make(map[uuid.UUID]history, len(tenants))
	for _, t := range tenants {
		histories[t] = history{}
	}
	rows, err := query(ctx, readHistories, tenants)
	if err != nil {
		return nil, fmt.Errorf("read the histories of tenants: %w", err)
	}
	var c change
	_, err = pgx.ForEachRow(rows, []any{&c.tenant, &c.position, &c.kind, &c.effectiveFrom, &c.snapshot, &c.name, &c.number, &c.threshold,
		&c.amount},
		func() error {
			of := histories[c.tenant]
			of.add(&c, &h.snapshots)
			histories[c.tenant] = of
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read the histories of tenants: %w", err)
	}
	return histories, nil
}

// maxSnapshots bounds the memory of the decoded snapshots: some 50 MB of small plans.
const maxSnapshots = 20_000

// snapshots caches decoded snapshots by their text, so that no change of the
// table can make an entry wrong.
type snapshots struct {
	mu    sync.Mutex
	known map[string]*domain.Subscription
}

func (c *snapshots) decode(text *string) (*domain.Subscription, error) {
	if text == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.known[*text]; ok {
		return s, nil
	}
	s := new(domain.Subscription)
	if err := json.Unmarshal([]byte(*text), s); err != nil {
		return nil, fmt.Errorf("read a subscription's snapshot: %w", err)
	}
	if c.known == nil || len(c.known) >= maxSnapshots {
		c.known = make(map[string]*domain.Subscription)
	}
	c.known[*text] = s
	return s, nil
}

// cachedHistories are the histories of tenants, each with the state of the catalogue that it was read at.
type cachedHistories struct {
	mu    sync.Mutex
	known map[uuid.UUID]cachedHistory
}

type cachedHistory struct {
	history
	at catalogueState
}

// catalogueState is how far the catalogue and the periods of a partition have come. Positions are given again in another epoch.
type catalogueState struct {
	epoch              int32
	catalogue, periods int64
}

// maxCached bounds the cached histories.
const maxCached = 20_000

func statesOf(stretches []events.InlineStretch) (states [events.Partitions]catalogueState) {
	for _, s := range stretches {
		states[s.Partition] = catalogueState{s.Epoch, s.Catalogue, s.Billing}
	}
	return states
}

// trueAt reports whether the tenant has not changed between the state that its history was read at and that of the locked head.
func (k *cachedHistory) trueAt(head catalogueState, tenant uuid.UUID, marks *projections.CatalogueMarks) bool {
	return marks != nil && k.at.epoch == head.epoch && marks.UnchangedAt(tenant, head.epoch, k.at.last(), head.last())
}

// last is the last change.
func (s catalogueState) last() int64 { return max(s.catalogue, s.periods) }

// of returns the histories that are known, and the tenants whose history is not.
func (c *cachedHistories) of(tenants []uuid.UUID, stretches []events.InlineStretch,
	marks *projections.CatalogueMarks) (histories map[uuid.UUID]history, missing []uuid.UUID) {
	states := statesOf(stretches)
	histories = make(map[uuid.UUID]history, len(tenants))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range tenants {
		if k, ok := c.known[t]; ok && k.at == states[events.PartitionOf(t)] {
			histories[t] = k.history
		} else if head := states[events.PartitionOf(t)]; ok && k.trueAt(head, t, marks) {
			k.at = head
			c.known[t], histories[t] = k, k.history
		} else {
			missing = append(missing, t)
		}
	}
	return histories, missing
}

// store caches histories that were read with the heads of the stretches locked.
func (c *cachedHistories) store(read map[uuid.UUID]history, stretches []events.InlineStretch) {
	states := statesOf(stretches)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known)+len(read) > maxCached {
		c.known = make(map[uuid.UUID]cachedHistory)
	}
	for t, h := range read {
		c.known[t] = cachedHistory{h, states[events.PartitionOf(t)]}
	}
}
