package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres"
)

const (
	tenantColumns = `id, name, class, status, mode, data_residency, created_at, external_ids, metadata, late_usage, close_after_hours,
 erased_at,
 CASE WHEN billing_provider IS NOT NULL THEN json_build_object('provider', billing_provider, 'customer', billing_customer) END AS billing`
	featureColumns      = `lookup_key, name, type, unit, group_by, billing_event`
	planColumns         = `key, name, entitlements`
	priceColumns        = `key, version, name, currency, model, micro_units, package_size, tiers`
	subscriptionColumns = `id, tenant_id, plan, status, entitlements, starts_at, created_at`
	keyColumns          = `id, tenant_id, name, prefix, mode, scopes, created_at, expires_at, revoked_at, ended`

	featureSQL = `SELECT ` + featureColumns + ` FROM features WHERE lookup_key = $1`
	planSQL    = `SELECT ` + planColumns + ` FROM plans WHERE key = $1`
	// priceSQL reads the present price: its last version.
	priceSQL  = `SELECT ` + priceColumns + ` FROM prices WHERE key = $1 ORDER BY version DESC LIMIT 1`
	pricesSQL = `SELECT DISTINCT ON (key) ` + priceColumns + ` FROM prices WHERE key > $1 ORDER BY key, version DESC LIMIT $2`
)

// Catalogue implements catalogue.Reader over the tables.
type Catalogue struct {
	Pool *pgxpool.Pool
	// Seat takes a seat among those that read from the pool, and may refuse. The read runs with the context seated; nil: no bound.
	Seat func(context.Context) (seated context.Context, leave func(), err error)
}

var _ catalogue.Reader = (*Catalogue)(nil)

// read runs a read on a connection, or refuses it. Its context ends if the read loses its seat.
func (c *Catalogue) read(ctx context.Context, read func(context.Context, *pgxpool.Conn) error) error {
	if c.Seat != nil {
		seated, leave, err := c.Seat(ctx)
		if err != nil {
			return err
		}
		defer leave()
		ctx = seated
	}
	conn, err := borrow(ctx, c.Pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err = read(ctx, conn); err != nil {
		err = Unavailable(unseated(ctx, err))
	}
	return err
}

// List reads rows, each by rowTo.
func List[T any](ctx context.Context, c *Catalogue, rowTo pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	err = c.read(ctx, func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		all, err = FindAll(ctx, conn, "reading a list", rowTo, sql, args...)
		return err
	})
	return all, err
}

// Get reads a row by rowTo; nil without one.
func Get[T any](ctx context.Context, c *Catalogue, rowTo pgx.RowToFunc[T], sql string, args ...any) (v *T, err error) {
	err = c.read(ctx, func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		v, err = Find(ctx, conn, rowTo, sql, args...)
		return err
	})
	return v, err
}

// Find is Get in a transaction, or on a connection.
func Find[T any](ctx context.Context, db postgres.Queryer, rowTo pgx.RowToFunc[T], sql string, args ...any) (*T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return firstRow(rows, rowTo)
}

// FindAll is List in a transaction, or on a connection. Its error begins with doing.
func FindAll[T any](ctx context.Context, db postgres.Queryer, doing string, rowTo pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil {
		var all []T
		if all, err = pgx.CollectRows(rows, rowTo); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", doing, err)
}

// firstRow reads the first row by rowTo; nil without one.
func firstRow[T any](rows pgx.Rows, rowTo pgx.RowToFunc[T]) (*T, error) {
	v, err := pgx.CollectOneRow(rows, rowTo)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a %T: %w", v, err)
	}
	return &v, nil
}

// AfterID returns the id after which a page begins. An invalid id sorts before all others.
func AfterID(p commands.Page) uuid.UUID {
	id, _ := uuid.Parse(p.After)
	return id
}

// BeforeID returns the id before which a page of a list begins that has the newest first; nil: at the newest.
func BeforeID(p commands.Page) *uuid.UUID {
	if p.After == "" {
		return nil
	}
	id := AfterID(p)
	return &id
}

// Tenants lists by id.
func (c *Catalogue) Tenants(ctx context.Context, p commands.Page) ([]domain.Tenant, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Tenant], `SELECT `+tenantColumns+` FROM tenants WHERE id > $1 ORDER BY id LIMIT $2`,
		AfterID(p), p.Limit)
}

// findTenantsSQL walks the tenants in the order of the list and stops after a page. A text within a name is in no index without
// pg_trgm, so that a page of a rare text compares all tenants that follow: 10,000 take 7 ms. strpos has no wildcards, and the searched text
// no line feed.
const findTenantsSQL = `SELECT ` + tenantColumns + ` FROM tenants
 WHERE id > $1 AND (strpos(lower((name || E'\n' || array_to_string(external_ids, E'\n')) COLLATE "default"), lower($3)) > 0
 OR starts_with(id::text, lower($3)))
 ORDER BY id LIMIT $2`

// FindTenants lists by id.
func (c *Catalogue) FindTenants(ctx context.Context, text string, p commands.Page) ([]domain.Tenant, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Tenant], findTenantsSQL, AfterID(p), p.Limit, text)
}

// Tenant returns a tenant, or nil.
func (c *Catalogue) Tenant(ctx context.Context, id uuid.UUID) (*domain.Tenant, error) {
	return Get(ctx, c, pgx.RowToStructByName[domain.Tenant], tenantSQL, id)
}

// TenantOfExternalID returns the tenant with an external id, or nil.
func (c *Catalogue) TenantOfExternalID(ctx context.Context, externalID string) (*domain.Tenant, error) {
	return Get(ctx, c, pgx.RowToStructByName[domain.Tenant],
		`SELECT `+tenantColumns+` FROM tenants WHERE id = (SELECT tenant_id FROM tenant_external_ids WHERE external_id = $1)`, externalID)
}

// Keys lists a tenant's keys by id; the platform's keys are those of operators.
func (c *Catalogue) Keys(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]domain.APIKey, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.APIKey],
		`SELECT `+keyColumns+` FROM api_keys WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3`, tenant, AfterID(p), p.Limit)
}

// Features lists by lookup key.
func (c *Catalogue) Features(ctx context.Context, p commands.Page) ([]domain.Feature, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Feature],
		`SELECT `+featureColumns+` FROM features WHERE lookup_key > $1 ORDER BY lookup_key LIMIT $2`, p.After, p.Limit)
}

// Feature returns a feature, or nil.
func (c *Catalogue) Feature(ctx context.Context, lookupKey string) (*domain.Feature, error) {
	return Get(ctx, c, pgx.RowToStructByName[domain.Feature], featureSQL, lookupKey)
}

// Plans lists by key.
func (c *Catalogue) Plans(ctx context.Context, p commands.Page) ([]domain.Plan, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Plan], `SELECT `+planColumns+` FROM plans WHERE key > $1 ORDER BY key LIMIT $2`,
		p.After, p.Limit)
}

// Plan returns a plan, or nil.
func (c *Catalogue) Plan(ctx context.Context, key string) (*domain.Plan, error) {
	return Get(ctx, c, pgx.RowToStructByName[domain.Plan], planSQL, key)
}

// Prices lists by key.
func (c *Catalogue) Prices(ctx context.Context, p commands.Page) ([]domain.Price, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Price], pricesSQL, p.After, p.Limit)
}

// Price returns a price, or nil.
func (c *Catalogue) Price(ctx context.Context, key string) (*domain.Price, error) {
	return Get(ctx, c, pgx.RowToStructByName[domain.Price], priceSQL, key)
}

// PriceVersions lists the versions of a price.
func (c *Catalogue) PriceVersions(ctx context.Context, key string, after int64, limit int) ([]domain.Price, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Price],
		`SELECT `+priceColumns+` FROM prices WHERE key = $1 AND version > $2 ORDER BY version LIMIT $3`, key, after, limit)
}

// Subscriptions lists a tenant's subscriptions by id.
func (c *Catalogue) Subscriptions(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]domain.Subscription, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Subscription],
		`SELECT `+subscriptionColumns+` FROM subscriptions WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3`, tenant, AfterID(p),
		p.Limit)
}

// subscriptionsOfPlanSQL compares the members that a snapshot copies from its plan; members that were added later may be absent. No index
// has the plan: 10,000 subscriptions take some tens of milliseconds.
const subscriptionsOfPlanSQL = `SELECT ` + subscriptionColumns + ` FROM subscriptions s
 WHERE plan = $1 AND id > $2 AND (NOT $3 OR status NOT IN ('CANCELLED', 'EXPIRED') AND
  (SELECT coalesce(jsonb_agg(jsonb_strip_nulls(e - 'type' - 'unit' - 'priceVersion') ORDER BY n), '[]')
  FROM jsonb_array_elements(s.entitlements::jsonb) WITH ORDINALITY AS x (e, n))
   IS DISTINCT FROM (SELECT jsonb_strip_nulls(CASE jsonb_typeof(p.entitlements::jsonb) WHEN 'array' THEN p.entitlements::jsonb
   ELSE '[]' END) FROM plans p WHERE p.key = $1))
 ORDER BY id LIMIT $4`

// SubscriptionsOfPlan lists by id.
func (c *Catalogue) SubscriptionsOfPlan(ctx context.Context, plan string, older bool, p commands.Page) ([]domain.Subscription, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Subscription], subscriptionsOfPlanSQL, plan, AfterID(p), older, p.Limit)
}

// Subscription returns a tenant's subscription, or nil.
func (c *Catalogue) Subscription(ctx context.Context, tenant, id uuid.UUID) (*domain.Subscription, error) {
	return Get(ctx, c, pgx.RowToStructByName[domain.Subscription],
		`SELECT `+subscriptionColumns+` FROM subscriptions WHERE tenant_id = $1 AND id = $2`, tenant, id)
}
