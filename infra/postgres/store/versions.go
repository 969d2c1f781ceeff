package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
)

// Versions of entities. The number of the transaction that wrote a row (xmin) differs after each change of it, also after one that is taken
// back. A rebuild's row is written by the workers, too, and a period has no row: their versions are the members that decisions change.
const (
	featureVersion      = `SELECT xmin::text FROM features WHERE lookup_key = $1`
	planVersion         = `SELECT xmin::text FROM plans WHERE key = $1`
	priceVersion        = `SELECT version::text FROM prices WHERE key = $1 ORDER BY version DESC LIMIT 1`
	tenantVersion       = `SELECT xmin::text FROM tenants WHERE id = $1::uuid`
	subscriptionVersion = `SELECT xmin::text FROM subscriptions WHERE id = $1::uuid`
	webhookVersion      = `SELECT xmin::text FROM webhooks WHERE id = $1::uuid`
	rebuildVersion      = `SELECT concat_ws('/', state, flip, extract(epoch FROM ended_at)) FROM projection_rebuilds WHERE id = $1::uuid`
	// That of a period that was never closed is 0. Adjustments change by a new one, or by a decision.
	periodVersion = `SELECT concat_ws('/', coalesce((SELECT max(position) FROM period_changes WHERE tenant_id = $1::uuid
		AND period_key = $2), 0),
  (SELECT concat_ws('/', count(*), max(position), max(decided)) FROM adjustments WHERE tenant_id = $1::uuid AND period_key = $2))`
)

// versionOf returns the statement that reads a version, and its arguments.
func versionOf(of commands.Ref) (sql string, args []any) {
	args = []any{of.ID}
	switch of.Of {
	case commands.EntityFeature:
		sql = featureVersion
	case commands.EntityPlan:
		sql = planVersion
	case commands.EntityPrice:
		sql = priceVersion
	case commands.EntityTenant:
		sql = tenantVersion
	case commands.EntitySubscription:
		sql = subscriptionVersion
	case commands.EntityWebhook:
		sql = webhookVersion
	case commands.EntityRebuild:
		sql = rebuildVersion
	case commands.EntityPeriod:
		sql, args = periodVersion, []any{of.ID, of.Key}
	}
	return sql, args
}

func readVersion(ctx context.Context, db Querier, of commands.Ref) (version string, err error) {
	sql, args := versionOf(of)
	if err = db.QueryRow(ctx, sql, args...).Scan(&version); errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		err = fmt.Errorf("reading the version of a %s: %w", of.Of, err)
	}
	return version, err
}

// Version implements commands.Versions.
func (t *Tx) Version(of commands.Ref) (string, error) { return readVersion(t.ctx, t.tx, of) }

// Version implements catalogue.Reader.
func (c *Catalogue) Version(ctx context.Context, of commands.Ref) (version string, err error) {
	err = c.read(ctx, func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		version, err = readVersion(ctx, conn, of)
		return err
	})
	return version, err
}
