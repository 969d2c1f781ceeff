package prometheus

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// accountsAtOnce bounds the accounts that one read of the state compares.
const accountsAtOnce = 1000

// quotaDrift counts the accounts behind limits that differ from the projection entitlement_reads, which folds the same
// events: none, unless rows were changed outside of the service. Each read compares some accounts, all of them in turns.
type quotaDrift struct {
	gauge prom.Gauge
	after accountPlace
	found int // in this turn so far
}

// accountPlace is the last account that was compared.
type accountPlace struct {
	tenant          uuid.UUID
	feature, period string
}

func newQuotaDrift() *quotaDrift {
	return &quotaDrift{gauge: prom.NewGauge(prom.GaugeOpts{Name: "meterplex_quota_drift",
		Help: "Accounts behind limits that differ from the log, as of the last turn through all of them; entitlements reconcile shows and repairs them."})}
}

// accountDriftSQL compares the accounts of tenants whose projection is of a version that counts admitted usage, and up to the
// head. The others are compared in another turn.
const accountDriftSQL = `SELECT a.tenant_id, a.feature, a.period_key,
  coalesce(g.fold_version NOT IN ('entitlement_reads/v1', 'entitlement_reads/v2') AND c.position = h.position
   AND (a.used <> coalesce(u.used, 0) OR a.held <> coalesce(u.held, 0)), false)
 FROM (SELECT * FROM quota_accounts WHERE (tenant_id, feature, period_key) > ($1, $2, $3) ORDER BY tenant_id, feature, period_key LIMIT $4) a
 JOIN log_heads h ON h.partition = get_byte(sha256(convert_to(a.tenant_id::text, 'UTF8')), 0) % 32
 CROSS JOIN LATERAL (SELECT p.generation FROM projection_pointers p
  WHERE p.live AND p.projection = '` + projections.ProjectionEntitlements + `' AND p.tenant_id IN (a.tenant_id, '00000000-0000-0000-0000-000000000000')
  ORDER BY p.tenant_id DESC LIMIT 1) l
 JOIN projection_generations g ON g.projection = '` + projections.ProjectionEntitlements + `' AND g.generation = l.generation
 LEFT JOIN consumer_checkpoints c ON c.consumer = '` + events.GroupEntitlements + `' AND c.generation = l.generation AND c.partition = h.partition
 LEFT JOIN LATERAL (SELECT n.used, n.held FROM entitlement_usage n
  WHERE n.generation = l.generation AND n.tenant_id = a.tenant_id AND n.feature = a.feature AND n.period_key = a.period_key LIMIT 1) u ON true
 ORDER BY a.tenant_id, a.feature, a.period_key`

func (d *quotaDrift) read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	rows, err := pool.Query(ctx, accountDriftSQL, d.after.tenant, d.after.feature, d.after.period, accountsAtOnce)
	if err != nil {
		return fmt.Errorf("comparing accounts: %w", err)
	}
	last, found, n := d.after, d.found, 0
	var differs bool
	_, err = pgx.ForEachRow(rows, []any{&last.tenant, &last.feature, &last.period, &differs}, func() error {
		if n++; differs {
			found++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("comparing accounts: %w", err)
	}
	if d.after, d.found = last, found; n < accountsAtOnce {
		d.gauge.Set(float64(found))
		d.after, d.found = accountPlace{}, 0
	}
	return nil
}
