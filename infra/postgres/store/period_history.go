package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

const periodChangesSQL = `SELECT tenant_id, position, period_key, snapshot, change FROM period_changes WHERE tenant_id = ANY ($1::uuid[])
	ORDER BY tenant_id, position`

// Periods implements repair.DeadLetterTx and billing.PeriodTx.
func (t *Tx) Periods(tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	return PeriodsOf(t.ctx, t.tx, tenants)
}

// PeriodsOf reads the changes of the periods of tenants.
func PeriodsOf(ctx context.Context, q postgres.Queryer, tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	rows, err := q.Query(ctx, periodChangesSQL, tenants)
	if err != nil {
		return nil, fmt.Errorf("reading the changes of periods: %w", err)
	}
	return scanPeriods(rows)
}

// ReadPeriods returns the read of the changes of a tenant's periods behind the locks of the heads.
func ReadPeriods(tenant uuid.UUID, into *map[uuid.UUID]domain.PeriodHistory) *eventlog.LockedRead {
	return &eventlog.LockedRead{Statement: server.Statement{SQL: periodChangesSQL, Args: []any{[]uuid.UUID{tenant}}},
		Scan: func(rows pgx.Rows) (err error) {
			*into, err = scanPeriods(rows)
			return err
		}}
}

func scanPeriods(rows pgx.Rows) (map[uuid.UUID]domain.PeriodHistory, error) {
	found := map[uuid.UUID]domain.PeriodHistory{}
	var tenant uuid.UUID
	var c domain.PeriodChange
	_, err := pgx.ForEachRow(rows, []any{&tenant, &c.Position, &c.PeriodKey, &c.Snapshot, &c.Change}, func() error {
		of := found[tenant]
		of.Changes = append(of.Changes, c)
		found[tenant] = of
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the changes of periods: %w", err)
	}
	return found, nil
}
