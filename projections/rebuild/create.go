package rebuild

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
)

const (
	createRebuild = `INSERT INTO projection_rebuilds (id, projection, consumer, generation, fold_version, purpose, repair, tenant_id,
		period_key, reason, state, workers, created_at)
 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`
	createUnits = `INSERT INTO rebuild_units (rebuild_id, partition, target) SELECT $1, u.* FROM unnest($2::smallint[], $3::bigint[]) u`
	saveRebuild = `UPDATE projection_rebuilds SET state = $2, flip = nullif($3, 0), differs = $4, ended_at = $5 WHERE id = $1`
)

// Create adds a rebuild, its generation and a unit for each of its partitions, and returns the
// generation's number. The caller holds the projection's first pointer.
func Create(ctx context.Context, tx pgx.Tx, r domain.Rebuild) (generation int, err error) {
	g, err := consume.AddGeneration(ctx, tx, r.Projection, r.FoldVersion, projections.Scope{TenantID: r.TenantID, PeriodKey: r.PeriodKey})
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, createRebuild, r.ID, r.Projection, r.Consumer, g.Number, r.FoldVersion, r.Purpose, r.Repair, r.TenantID,
		r.PeriodKey,
		r.Reason, r.State, r.Workers, r.CreatedAt)
	if err != nil {
		return 0, fmt.Errorf("keeping a rebuild: %w", err)
	}
	live, err := consume.CreateCheckpoints(ctx, tx, r.Consumer, g)
	if err != nil {
		return 0, fmt.Errorf("keeping a rebuild's units: %w", err)
	}
	partitions, targets := split(live)
	if _, err := tx.Exec(ctx, createUnits, r.ID, partitions, targets); err != nil {
		return 0, fmt.Errorf("keeping a rebuild's units: %w", err)
	}
	return g.Number, nil
}

// Save stores the state of a rebuild, and the result of the decision that led to it.
func Save(ctx context.Context, tx pgx.Tx, r domain.Rebuild) error {
	if _, err := tx.Exec(ctx, saveRebuild, r.ID, r.State, r.Flip, r.Differs, r.EndedAt); err != nil {
		return fmt.Errorf("keeping a rebuild: %w", err)
	}
	return nil
}
