package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Histories caches the subscription histories that verdicts are derived from. It implements
// commands.Histories.
type Histories struct {
	*cache[uuid.UUID, domain.History]
}

func newHistories(pool postgres.Pool, now func() time.Time, seen CatalogueSeen, loads seats) *Histories {
	return &Histories{(&cache[uuid.UUID, domain.History]{
		now: now, name: uuid.UUID.String, seen: seen,
		owner: func(tenant uuid.UUID, _ domain.History) owner { return owner{tenant, true} },
		load: func(ctx context.Context, tenant uuid.UUID) (domain.History, error) {
			leave, err := loads.acquire(ctx)
			if err != nil {
				return nil, err
			}
			defer leave()
			return loadHistory(ctx, pool, tenant)
		},
	}).empty()}
}

func loadHistory(ctx context.Context, q postgres.Queryer, tenant uuid.UUID) (domain.History, error) {
	rows, err := q.Query(ctx, `SELECT from_position, effective_from, snapshot FROM subscription_history WHERE tenant_id = $1 ORDER BY from_position`, tenant)
	if err != nil {
		return nil, fmt.Errorf("reading a tenant's subscriptions: %w", err)
	}
	defer rows.Close()
	var h domain.History
	for rows.Next() {
		var e domain.HistoryEntry
		var snapshot []byte
		if err := rows.Scan(&e.FromPosition, &e.EffectiveFrom, &snapshot); err != nil {
			return nil, fmt.Errorf("reading a subscription: %w", err)
		}
		if snapshot != nil {
			if err := json.Unmarshal(snapshot, &e.Subscription); err != nil {
				return nil, fmt.Errorf("decoding a subscription: %w", err)
			}
		}
		h = append(h, e)
	}
	return h, rows.Err()
}

// Cached implements commands.Histories.
func (h *Histories) Cached(ctx context.Context, tenant uuid.UUID) (domain.History, error) {
	v, err := h.get(ctx, tenant)
	return v, unavailable(err)
}

// Fresh implements commands.Histories.
func (h *Histories) Fresh(ctx context.Context, tenant uuid.UUID) (domain.History, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	v, err := h.load(ctx, tenant)
	return v, unavailable(err)
}
