package entitlements

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Another limit, and a new threshold, may leave a used amount above thresholds to which it will not rise in this period. They are crossed
// here, of QUOTA features, too, by the amounts at the position of the change.

// changesOf returns the events of a batch after which used amounts may be above thresholds.
func changesOf(batch []events.Envelope) (changes []*events.Envelope) {
	for i := range batch {
		switch batch[i].Subject {
		case events.SubscriptionCreated, events.SubscriptionChanged, events.ThresholdChanged:
			changes = append(changes, &batch[i])
		}
	}
	return changes
}

// above returns the crossings of used amounts that changes left above thresholds.
func (h *Handler) above(ctx context.Context, tx pgx.Tx, in projections.Generation, f *State,
	changes []*events.Envelope) (found []events.Pending, err error) {
	tenants, err := withThresholds(ctx, tx, changes)
	if err != nil || len(tenants) == 0 {
		return nil, err
	}
	histories, err := historiesOf(ctx, tx, tenants)
	if err != nil {
		return nil, err
	}
	for _, e := range changes {
		if !slices.Contains(tenants, e.TenantID) {
			continue
		}
		list, err := h.watchedAt(ctx, tx, in, histories[e.TenantID], e)
		if err != nil {
			return nil, err
		}
		for _, w := range list {
			thresholds, reason, err := w.concerned(e)
			if err != nil {
				return nil, err
			}
			used := w.usedAt(f, e.Position.Number)
			limit := histories[e.TenantID].LimitOf(e.Position.Number, w.feature, w.periodKey)
			for _, c := range domain.Above(thresholds, w.feature, limit, used, reason) {
				found = append(found, h.crossed(e, w, &c))
			}
		}
	}
	return found, nil
}

const readWatchers = `SELECT DISTINCT tenant_id FROM thresholds WHERE tenant_id = ANY ($1::uuid[]) AND removed IS NULL`

// withThresholds returns the tenants of events that have thresholds.
func withThresholds(ctx context.Context, tx pgx.Tx, changes []*events.Envelope) ([]uuid.UUID, error) {
	of := make([]uuid.UUID, len(changes))
	for i, e := range changes {
		of[i] = e.TenantID
	}
	rows, err := tx.Query(ctx, readWatchers, of)
	if err != nil {
		return nil, fmt.Errorf("find thresholds: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// watchedAt reads the used amounts of a tenant's features in their periods at the time of an event, with the tenant's thresholds.
func (h *Handler) watchedAt(ctx context.Context, tx pgx.Tx, in projections.Generation, history domain.History,
	e *events.Envelope) ([]*watched, error) {
	var keys []usedKey
	var owners []uuid.UUID
	var features, periods []string
	var first []int64
	for _, k := range history.Counting(e.Position.Number, e.RecordedAt) {
		keys = append(keys, usedKey{e.TenantID, k.Feature, k.PeriodKey})
		owners, features, periods, first = append(owners, e.TenantID), append(features, k.Feature), append(periods, k.PeriodKey),
			append(first, e.Position.Number)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, readWatched, in.Number, owners, features, periods, first)
	if err != nil {
		return nil, fmt.Errorf("read thresholds: %w", err)
	}
	return scanWatched(rows, keys)
}

// concerned returns the thresholds that an event may leave crossed: the defined one, or the percentages that are known at the change of a
// subscription.
func (w *watched) concerned(e *events.Envelope) (thresholds []domain.Threshold, reason string, err error) {
	var changed events.ChangedThreshold
	reason = events.CrossedByLimit
	if e.Subject == events.ThresholdChanged {
		reason = events.CrossedByDefinition
		if err := json.Unmarshal(e.Payload, &changed); err != nil {
			return nil, "", fmt.Errorf("read a threshold: %w", err)
		}
	}
	for i := range w.thresholds {
		t := &w.thresholds[i]
		if e.Subject == events.ThresholdChanged && t.ID == changed.ID && !changed.Removed ||
			e.Subject != events.ThresholdChanged && t.Percent != nil && t.at(e.Position.Number) {
			thresholds = append(thresholds, t.Threshold)
		}
	}
	return thresholds, reason, nil
}

// usedAt returns the used amount at a position of the batch.
func (w *watched) usedAt(f *State, position int64) *big.Int {
	used := new(big.Int).Set(&w.used)
	for _, s := range f.steps[w.usedKey] {
		if s.by.Position.Number > position {
			used.Sub(used, big.NewInt(s.amount))
		}
	}
	return used
}
