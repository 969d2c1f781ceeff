package closes

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
)

// firstFold is the version of the fold of usage that counts late usage as the log does.
const firstFold = projections.ProjectionUsage + "/v1"

// otherFolds are the live generations of usage with another fold.
const otherFolds = `SELECT p.flip, p.generation, p.tenant_id, p.period_key FROM projection_pointers p JOIN projection_generations g
	USING (projection, generation)
 WHERE p.projection = '` + projections.ProjectionUsage + `' AND p.live AND g.fold_version <> '` + firstFold + `'`

const (
	newestAdjustmentSQL = `SELECT a.id FROM adjustments a WHERE EXISTS (` + otherFolds + `) ORDER BY a.id DESC LIMIT 1`

	// lateUsageSQL lists the tenants with late usage in closed periods of such a generation, if no saga of this usage exists.
	lateUsageSQL = `WITH other AS MATERIALIZED (` + otherFolds + `),
closed AS (
  SELECT c.tenant_id, max(o.flip) AS flip
  FROM (SELECT DISTINCT tenant_id, period_key FROM period_snapshots) c
  JOIN other o ON o.tenant_id IN (c.tenant_id, '00000000-0000-0000-0000-000000000000') AND o.period_key IN (c.period_key, '')
  WHERE NOT EXISTS (SELECT FROM projection_pointers over WHERE over.projection = '` + projections.ProjectionUsage +
		`' AND over.undone_flip IS NULL AND over.flip > o.flip
    AND over.tenant_id IN (c.tenant_id, '00000000-0000-0000-0000-000000000000') AND over.period_key IN (c.period_key, ''))
  GROUP BY c.tenant_id),
late AS (
  SELECT c.tenant_id, c.flip, coalesce(r.id, '00000000-0000-0000-0000-000000000000') AS rebuild, a.position, l.n, p.n AS snapshots
  FROM closed c JOIN other o USING (flip)
  LEFT JOIN projection_rebuilds r ON r.projection = '` + projections.ProjectionUsage + `' AND r.generation = o.generation
  CROSS JOIN LATERAL (SELECT a.position FROM adjustments a WHERE a.tenant_id = c.tenant_id AND a.kind <> '` + events.AdjustmentRebuild +
		`' AND a.state <> 'VOID'
    ORDER BY a.position DESC LIMIT 1) a
  CROSS JOIN LATERAL (SELECT count(*) AS n FROM dead_letter_events d WHERE d.generation = live_generation('` +
		projections.ProjectionDeadLetters + `', c.tenant_id, '')
    AND d.tenant_id = c.tenant_id AND d.stage = '` + events.StageAggregation + `' AND d.status = '` + events.StatusResolved + `') l
  CROSS JOIN LATERAL (SELECT count(*) AS n FROM period_snapshots p WHERE p.tenant_id = c.tenant_id) p)
SELECT tenant_id, flip, rebuild AS rebuild_id, position, n AS resolved, snapshots,
  NOT EXISTS (SELECT FROM sagas s WHERE s.kind = '` + billing.SagaReconcile +
		`' AND s.ended_at IS NULL AND s.tenant_id IN (late.tenant_id, '00000000-0000-0000-0000-000000000000')) AS ready
FROM late
WHERE NOT EXISTS (SELECT FROM sagas s WHERE s.kind = '` + billing.SagaReconcile + `' AND s.tenant_id = late.tenant_id
  AND s.key = flip || '/' || rebuild || '/' || position || '/' || n || '/' || snapshots)
ORDER BY tenant_id`

	// foldedSQL reads how far the live figures of each partition are. All joined generations have the same position.
	foldedSQL = `SELECT k.partition, min(k.position) FROM consumer_checkpoints k
 WHERE k.consumer = '` + events.GroupAggregator +
		`' AND k.generation IN (SELECT p.generation FROM projection_pointers p WHERE p.projection = '` + projections.ProjectionUsage +
		`' AND p.live)
 GROUP BY k.partition`
)

// LateUsage implements billing.PeriodStore.
func (s *Periods) LateUsage(ctx context.Context, seen uuid.UUID) (list []billing.LateUsage, newest uuid.UUID, err error) {
	err = InSnapshot(ctx, s.Store, func(t pgx.Tx) error {
		found, err := store.Find(ctx, t, pgx.RowTo[uuid.UUID], newestAdjustmentSQL)
		if newest = seen; err != nil || found == nil || *found == seen {
			return err
		}
		newest = *found
		list, err = store.FindAll(ctx, t, "reading late usage", pgx.RowToStructByName[billing.LateUsage], lateUsageSQL)
		if err != nil || len(list) == 0 {
			return err
		}
		folded, err := foldedPositions(ctx, t)
		for i := range list {
			list[i].Ready = list[i].Ready && folded[events.PartitionOf(list[i].TenantID)] >= list[i].Position
		}
		return err
	})
	return list, newest, err
}

// foldedPositions returns the positions up to which live figures count, by partition. A tenant is not asked for alone: there may be many.
func foldedPositions(ctx context.Context, t pgx.Tx) (folded [events.Partitions]int64, err error) {
	rows, err := t.Query(ctx, foldedSQL)
	if err != nil {
		return folded, err
	}
	var partition int16
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		folded[partition] = position
		return nil
	})
	return folded, err
}

// Differs implements billing.PeriodStore.
func (s *Periods) Differs(ctx context.Context, tenant uuid.UUID) (differs bool, err error) {
	err = InSnapshot(ctx, s.Store, func(t pgx.Tx) error {
		lines, err := unreconciled(ctx, t, tenant)
		differs = len(lines) > 0
		return err
	})
	return differs, err
}
