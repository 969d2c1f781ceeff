package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections/validate"
)

// HistoryCache caches the histories of tenants that verdicts are derived from. It implements
// metering.Histories.
type HistoryCache struct {
	*cache[uuid.UUID, domain.TenantHistory]
}

func newHistoryCache(pool postgres.Pool, now func() time.Time, seen CatalogueSeen, loads limited) *HistoryCache {
	source := &validate.HistoryReader{}
	return &HistoryCache{(&cache[uuid.UUID, domain.TenantHistory]{
		now: now, name: uuid.UUID.String, seen: seen,
		owner: func(tenant uuid.UUID, _ domain.TenantHistory) owner { return owner{tenant, true} },
		load: func(ctx context.Context, tenant uuid.UUID) (domain.TenantHistory, error) {
			leave, err := loads.acquire(ctx)
			if err != nil {
				return domain.TenantHistory{}, err
			}
			defer leave()
			return source.Read(ctx, pool.Query, tenant)
		},
	}).empty()}
}

// Cached implements metering.Histories.
func (h *HistoryCache) Cached(ctx context.Context, tenant uuid.UUID) (domain.TenantHistory, error) {
	v, _, err := h.get(ctx, tenant)
	return v, Unavailable(err)
}

// Fresh implements metering.Histories.
func (h *HistoryCache) Fresh(ctx context.Context, tenant uuid.UUID) (domain.TenantHistory, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	v, err := h.load(ctx, tenant)
	return v, Unavailable(err)
}
