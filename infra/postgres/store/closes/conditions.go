package closes

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/periods"
	"github.com/meterplex/meterplex/projections/query"
)

// missingSQL returns whether a tenant ($1, partition $2) has any failure in the log, whether a rebuild of the period $4 is open, and
// whether the verdict on an event up to the cut $3 is behind the position of the aggregator, whose joined generations have the same one:
// that of a retry, whose dead letter the validator has ended.
var missingSQL = events.SQL(`
SELECT EXISTS (SELECT FROM event_log_rows f WHERE f.subject IN ({usage.event.publish_failed}, {usage.event.aggregation_failed})
AND f.tenant_id = $1 AND f.partition IS NOT DISTINCT FROM $2),
  EXISTS (SELECT FROM projection_rebuilds r WHERE r.projection = '` + projections.ProjectionUsage + `' AND r.purpose = '` +
	events.PurposeRebuild + `'
    AND r.state IN ('FOLDING', 'CATCHING_UP', 'READY') AND r.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
    AND r.period_key IN ('', $4)),
  EXISTS (SELECT FROM event_log_rows v WHERE v.partition = $2 AND v.position > (SELECT min(k.position) FROM consumer_checkpoints k
      WHERE k.consumer = '` + events.GroupAggregator +
	`' AND k.partition = $2 AND k.joined) AND v.tenant_id = $1 AND v.subject = {usage.event.validated}
    AND CASE WHEN v.dedupe_key LIKE 'v/%' THEN substr(v.dedupe_key, 3)::bigint END <= $3)`)

// openLettersSQL counts the open dead letters of a tenant ($1, partition $2) whose events have a cause up to the cut $3: those that failed,
// and those that are being retried. They are read from the log, so that the list is complete. Late verdicts of the snapshot $4 are not
// meant, nor are events whose retry failed (that failure is meant) or was rejected, nor those that were rejected and are retried behind the
// cut. To plan it takes longer than the other statements of a close together, so that it is read for tenants with failures only.
var openLettersSQL = events.SQL(`
WITH open AS MATERIALIZED (
  SELECT f.subject, f.body, f.event_id, s.position, s.subject AS of, s.payload
  FROM event_log_rows f
  CROSS JOIN LATERAL (SELECT s.position, s.subject, s.payload FROM event_log_rows s WHERE s.partition = $2
    AND s.position = (` + projections.FailureSource("f") + `)::bigint LIMIT 1) s
  WHERE f.tenant_id = $1 AND f.partition IS NOT DISTINCT FROM $2 AND ` + projections.UncountedVerdict("f", events.GroupValidator) + `
    AND s.subject IN ({usage.event.recorded}, {usage.event.admitted}, {usage.event.corrected}, {usage.event.retracted},
    {usage.event.retried},
      {usage.event.validated}, {usage.event.reaggregated})
    AND NOT EXISTS (SELECT FROM event_log_rows e WHERE e.partition = $2 AND e.tenant_id = $1
      AND e.dedupe_key = 'r/' || coalesce(f.body ->> 'deadLetterId', f.event_id::text) || '/closed')),
letters AS (
  SELECT EXISTS (SELECT FROM event_log_rows e WHERE e.partition = $2 AND e.tenant_id = $1
      AND e.dedupe_key = 'r/' || coalesce(o.body ->> 'deadLetterId', o.event_id::text) || '/' || (coalesce((o.body ->> 'attempt')::int,
      0) + 1)) AS retried,
    EXISTS (SELECT FROM event_log_rows e WHERE e.partition = $2 AND e.tenant_id = $1
      AND e.dedupe_key IN ('r/' || coalesce(o.body ->> 'deadLetterId', o.event_id::text) || '/' || (coalesce((o.body ->> 'attempt')::int,
      0) + 1) || '/failed',
        CASE WHEN o.of IN ({usage.event.validated}, {usage.event.reaggregated}) THEN NULL
         ELSE 'x/' || coalesce((o.payload ->> 'rawPosition')::bigint, o.position) || '/' || (coalesce((o.body ->> 'attempt')::int,
         0) + 1) END)) AS again
  FROM open o
  WHERE coalesce((o.payload ->> 'rawPosition')::bigint, (o.payload #>> '{validated,rawPosition}')::bigint, o.position) <= $3
    AND coalesce((o.payload #>> '{late,snapshot}')::int, (o.payload #>> '{validated,late,snapshot}')::int, 0) <> $4
    AND NOT (o.of = {usage.event.retried} AND coalesce((o.payload ->> 'rejected')::boolean, false) AND o.position > $3))
SELECT count(*) FILTER (WHERE NOT retried), count(*) FILTER (WHERE retried AND NOT again) FROM letters`)

// Missing implements billing.PeriodStore.
func (s *Periods) Missing(ctx context.Context, c domain.Closing) (missing []string, err error) {
	err = s.inSnapshotOfClose(ctx, func(t pgx.Tx) error {
		periods, err := store.PeriodsOf(ctx, t, []uuid.UUID{c.TenantID})
		if err != nil {
			return err
		}
		history := periods[c.TenantID]
		missing, err = MissingIn(ctx, t, c, history.Cut(c.PeriodKey, c.Snapshot))
		return err
	})
	return missing, err
}

// Missing implements billing.FreezeTx.
func (t *periodTx) Missing(c domain.Closing, cut int64) ([]string, error) {
	return MissingIn(t.Context(), t.DB(), c, cut)
}

// MissingIn names the conditions that a close, or an offboarding, has to wait for.
func MissingIn(ctx context.Context, tx pgx.Tx, c domain.Closing, cut int64) (missing []string, err error) {
	partition := events.PartitionOf(c.TenantID)
	var standing query.Standing
	var failed, retried int
	var failures, rebuild, unfolded bool
	err = query.RunAll(ctx, tx,
		query.ReadStanding(query.AggregatesSource(), c.TenantID, &standing),
		query.New(missingSQL, []any{c.TenantID, partition, cut, c.PeriodKey}, query.Each(func(rows pgx.Rows) error {
			return rows.Scan(&failures, &rebuild, &unfolded)
		})))
	if err != nil {
		return nil, fmt.Errorf("reading what a close waits for: %w", err)
	}
	if failures {
		if err := tx.QueryRow(ctx, openLettersSQL, c.TenantID, partition, cut, c.Snapshot).Scan(&failed, &retried); err != nil {
			return nil, fmt.Errorf("reading the open dead letters of a close: %w", err)
		}
	}
	for _, condition := range []struct {
		name    string
		missing bool
	}{{domain.MissingAggregation, unfolded || standing.Passed() < cut}, {domain.MissingLetters, failed > 0},
		{domain.MissingRetries, retried > 0}, {domain.MissingRebuilds, rebuild}} {
		if condition.missing {
			missing = append(missing, condition.name)
		}
	}
	return missing, nil
}

// dueClosesSQL finds periods with usage whose tenant has a policy and is not archived, some time after their end, with their last
// snapshots: those that were never closed, and those that were reopened before that time, such as by the cancellation of an offboarding. A
// later reopening is for an operator to end. No figures of closed periods are read: the end of a period, which follows from its key, is
// looked up once for all tenants, a tenant's closed periods leave the list next, and only then it is asked whether the tenant has a figure
// in a period, and in which generation. OFFSET 0 keeps the planner from joining all figures instead.
const dueClosesSQL = `WITH RECURSIVE live AS MATERIALIZED (
  SELECT p.generation, p.tenant_id, p.period_key FROM projection_pointers p WHERE p.live AND p.projection = '` +
	projections.ProjectionUsage + `'),
used (generation, period_key, period_end) AS (
  SELECT g.generation, u.period_key, u.period_end FROM (SELECT DISTINCT l.generation FROM live l) g
  CROSS JOIN LATERAL (SELECT u.period_key, u.period_end FROM usage_aggregates u WHERE u.generation = g.generation
  ORDER BY u.period_key LIMIT 1) u
  UNION ALL
  SELECT g.generation, u.period_key, u.period_end FROM used g
  CROSS JOIN LATERAL (SELECT u.period_key, u.period_end FROM usage_aggregates u WHERE u.generation = g.generation
  AND u.period_key > g.period_key ORDER BY u.period_key LIMIT 1) u),
ends AS MATERIALIZED (SELECT period_key, max(period_end) AS period_end FROM used GROUP BY period_key)
SELECT t.id AS tenant_id, k.period_key, k.snapshot FROM tenants t
 CROSS JOIN LATERAL (SELECT e.period_key, 0 AS snapshot FROM ends e
 WHERE e.period_end + make_interval(hours => t.close_after_hours) <= now()
  EXCEPT SELECT c.period_key, 0 FROM period_changes c WHERE c.tenant_id = t.id
  UNION ALL
  SELECT r.period_key, r.snapshot FROM period_changes r JOIN ends e ON e.period_key = r.period_key
  AND e.period_end + make_interval(hours => t.close_after_hours) <= now()
  WHERE r.tenant_id = t.id AND r.change = 'reopened' AND r.changed_at < e.period_end + make_interval(hours => t.close_after_hours)
   AND NOT EXISTS (SELECT FROM period_changes n WHERE n.tenant_id = r.tenant_id AND n.period_key = r.period_key
   AND n.snapshot > r.snapshot)) k
 WHERE t.close_after_hours IS NOT NULL AND t.status <> 'ARCHIVED' AND t.id >= $1 AND (t.id, k.period_key) > ($1, $2)
  AND EXISTS (SELECT FROM live l WHERE l.tenant_id IN (t.id, '00000000-0000-0000-0000-000000000000') AND l.period_key IN (k.period_key, '')
   AND CASE WHEN EXISTS (SELECT FROM usage_aggregates u WHERE u.generation = l.generation AND u.period_key = k.period_key
   AND u.tenant_id = t.id OFFSET 0)
    THEN l.generation = live_generation('` + projections.ProjectionUsage + `', t.id, k.period_key) END OFFSET 0)
 ORDER BY 1, 2 LIMIT $3`

// DueCloses implements billing.PeriodStore.
func (s *Periods) DueCloses(ctx context.Context, after domain.Closing, limit int) ([]domain.Closing, error) {
	list, err := store.FindAll(ctx, s.Store.Pool(), "finding due closes", pgx.RowToStructByName[domain.Closing], dueClosesSQL,
		after.TenantID, after.PeriodKey, limit)
	return list, store.Unavailable(err)
}

// unreconciledSQL lists the lines of a tenant's closed periods that differ from the frozen figure and the adjustments.
var unreconciledSQL = `SELECT period_key, snapshot, feature, subscription_id, to_json(unreconciled) AS amount,
 unreconciled_count AS event_count FROM (` + periods.Lines + `) l
 WHERE present AND (unreconciled <> 0 OR unreconciled_count <> 0) ORDER BY period_key, feature, subscription_id`

// Unreconciled implements billing.FreezeTx.
func (t Tx) Unreconciled(tenant uuid.UUID) ([]domain.UnreconciledLine, error) {
	return unreconciled(t.Context(), t.DB(), tenant)
}

func unreconciled(ctx context.Context, q postgres.Queryer, tenant uuid.UUID) ([]domain.UnreconciledLine, error) {
	return store.FindAll(ctx, q, "comparing closed periods", pgx.RowToStructByNameLax[domain.UnreconciledLine], unreconciledSQL, tenant,
		events.PartitionOf(tenant), "", 0)
}
