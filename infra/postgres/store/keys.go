package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Unavailable marks an error of the database as one that the caller may try again.
func Unavailable(err error) error {
	if full := (*commands.Overloaded)(nil); err == nil || errors.As(err, &full) {
		return err
	}
	return fmt.Errorf("%w: %v", commands.ErrUnavailable, err)
}

type keyAndTenant struct {
	key    *domain.APIKey
	tenant *domain.Tenant
}

// Keys implements catalogue.Keyring. Its answers were true within the last second.
type Keys struct {
	*cache[[32]byte, keyAndTenant]
}

func newKeys(pool postgres.Pool, now func() time.Time, seen CatalogueSeen, loads limited) *Keys {
	return &Keys{(&cache[[32]byte, keyAndTenant]{
		now: now, name: func(h [32]byte) string { return hex.EncodeToString(h[:]) }, seen: seen, owner: ownerOfKey,
		load: func(ctx context.Context, hash [32]byte) (keyAndTenant, error) {
			leave, err := loads.acquire(ctx)
			if err != nil {
				return keyAndTenant{}, err
			}
			defer leave()
			return loadKey(ctx, pool, hash)
		},
	}).empty()}
}

// ownerOfKey returns the tenant of a key; uuid.Nil for an unknown key.
func ownerOfKey(_ [32]byte, v keyAndTenant) owner {
	if v.key == nil {
		return owner{}
	}
	return owner{v.key.TenantID, true}
}

// Find implements catalogue.Keyring.
func (k *Keys) Find(ctx context.Context, hash [32]byte) (*domain.APIKey, *domain.Tenant, commands.CatalogueAt, error) {
	kt, seen, err := k.get(ctx, hash)
	return kt.key, kt.tenant, seen, Unavailable(err)
}

func loadKey(ctx context.Context, pool postgres.Pool, hash [32]byte) (keyAndTenant, error) {
	key, err := Find(ctx, pool, pgx.RowToStructByName[domain.APIKey], `SELECT `+keyColumns+` FROM api_keys WHERE secret_hash = $1`, hash[:])
	if err != nil || key == nil || key.TenantID == uuid.Nil {
		return keyAndTenant{key: key}, err
	}
	tenant, err := Find(ctx, pool, pgx.RowToStructByName[domain.Tenant], tenantSQL, key.TenantID)
	if tenant != nil {
		tenant.ExternalIDs, tenant.Metadata = nil, nil // no request with a key needs them: the cache stays small
	}
	return keyAndTenant{key, tenant}, err
}
