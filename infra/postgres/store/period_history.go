package store

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
)

const periodChangesSQL = `SELECT tenant_id, position, period_key, snapshot, change FROM period_changes WHERE tenant_id = ANY ($1::uuid[]) ORDER BY tenant_id, position`

// Periods implements repair.DeadLetterTx and billing.PeriodTx.
func (t *Tx) Periods(tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	rows, err := t.tx.Query(t.ctx, periodChangesSQL, tenants)
	if err != nil {
		return nil, fmt.Errorf("reading the changes of periods: %w", err)
	}
	return scanPeriods(rows)
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
