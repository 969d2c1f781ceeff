package usage

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// countedUsage is a counted verdict, with its delta by the live fold.
type countedUsage struct {
	position int64 // its own
	cause    int64 // of its event: the recorded event, its retry, or the verdict itself if it is re-aggregated
	verdict  events.Validated
	key      Key
	delta    Delta
}

const readLiveVersions = `
SELECT p.period_key, g.fold_version FROM projection_pointers p
JOIN projection_generations g USING (projection, generation)
WHERE p.live AND p.projection = 'usage_aggregates' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
ORDER BY p.flip DESC`

// Keys are prefixes of a tenant's part of the unique index; '0' is the character
// after '/'.
var readRetried = events.SQL(`
SELECT l.event_id, l.position FROM event_log l
WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key > 'r/' AND l.dedupe_key < 'r0' AND l.subject = {usage.event.retried}`)

// Finds verdicts that failed to fold into the aggregates, and those that the pipe did not carry.
var readUncounted = events.SQL(`
SELECT (l.payload ->> 'sourcePosition')::bigint, coalesce(l.payload ->> 'code', ''), coalesce(l.payload ->> 'reason', '')
FROM event_log l JOIN log_origins o ON o.id = l.origin
WHERE l.partition = $1 AND l.tenant_id = $2
  AND (l.dedupe_key > 'e/' AND l.dedupe_key < 'e0' OR l.dedupe_key > 'r/' AND l.dedupe_key < 'r0')
  AND (l.subject = {usage.event.publish_failed} OR l.subject = {usage.event.aggregation_failed} AND o.actor_id = 'meterplex-usage-aggregator')`)

var readVerdicts = events.SQL(`
SELECT l.position, l.subject, l.causation_id, l.occurred_at, l.dedupe_key, l.body FROM event_log l
WHERE l.partition = $1 AND l.tenant_id = $2
  AND (l.dedupe_key > 'v/' AND l.dedupe_key < 'v0' OR l.dedupe_key > 'r/' AND l.dedupe_key < 'r0' AND l.subject = {usage.event.reaggregated})`)

// tenantVerdicts holds the data that decides which of a tenant's verdicts count.
type tenantVerdicts struct {
	tenant    uuid.UUID
	partition int16
	folds     []liveFold          // the latest flip first
	retried   map[uuid.UUID]int64 // positions of retries by their ids
	uncounted map[int64]uncountedUsage
}

// liveFold is the fold of a period's live generation; "": of all periods without their own.
type liveFold struct {
	period string
	fold   Fold
}

// uncountedUsage is the reason why a verdict is not counted.
type uncountedUsage struct{ code, reason string }

// counted visits every counted verdict of a tenant, in no particular order.
func (r *Reads) counted(ctx context.Context, v query.Viewer, tenant uuid.UUID, visit func(*countedUsage)) error {
	return r.Within(ctx, v, func(tx pgx.Tx) error {
		t, err := r.verdictsOf(ctx, tx, tenant)
		if err != nil {
			return err
		}
		return t.visit(ctx, tx, visit, func(*countedUsage) {})
	})
}

func (r *Reads) verdictsOf(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) (*tenantVerdicts, error) {
	t := &tenantVerdicts{tenant: tenant, partition: events.PartitionOf(tenant),
		retried: make(map[uuid.UUID]int64), uncounted: make(map[int64]uncountedUsage)}
	err := query.Run(ctx, tx, query.New(readLiveVersions, []any{tenant}, query.Each(func(rows pgx.Rows) error {
		var period, version string
		if err := rows.Scan(&period, &version); err != nil {
			return err
		}
		fold, err := r.Folds.Of(version)
		t.folds = append(t.folds, liveFold{period, fold})
		return err
	})))
	if err != nil {
		return nil, err
	}
	err = query.Run(ctx, tx, query.New(readRetried, []any{t.partition, tenant}, query.Each(func(rows pgx.Rows) error {
		var id uuid.UUID
		var position int64
		err := rows.Scan(&id, &position)
		t.retried[id] = position
		return err
	})))
	if err != nil {
		return nil, err
	}
	return t, query.Run(ctx, tx, query.New(readUncounted, []any{t.partition, tenant}, query.Each(func(rows pgx.Rows) error {
		var source int64
		var why uncountedUsage
		err := rows.Scan(&source, &why.code, &why.reason)
		t.uncounted[source] = why
		return err
	})))
}

// visit separates counted verdicts from uncounted ones: the aggregator has not counted a
// verdict that the fold refuses now.
func (t *tenantVerdicts) visit(ctx context.Context, tx pgx.Tx, counted, not func(*countedUsage)) error {
	return query.Run(ctx, tx, query.New(readVerdicts, []any{t.partition, t.tenant}, query.Each(func(rows pgx.Rows) error {
		e := events.Envelope{TenantID: t.tenant, Position: events.Position{Partition: t.partition}}
		var causation *uuid.UUID
		if err := rows.Scan(&e.Position.Number, &e.Subject, &causation, &e.OccurredAt, &e.DedupeKey, (*[]byte)(&e.Payload)); err != nil {
			return err
		}
		c := countedUsage{position: e.Position.Number}
		failure := projections.Try(e, func() (err error) {
			if c.verdict, err = codec.VerdictOf(&e); err == nil {
				c.cause = t.causeOf(&e, c.verdict.RawPosition, causation)
				c.key, c.delta, err = t.fold(&e)
			}
			return err
		})
		if _, failed := t.uncounted[c.position]; failed || failure != nil {
			not(&c)
		} else {
			counted(&c)
		}
		return nil
	})))
}

func (t *tenantVerdicts) causeOf(e *events.Envelope, raw int64, causation *uuid.UUID) int64 {
	if e.Subject == events.Reaggregated {
		return e.Position.Number
	}
	if causation != nil {
		if retry, ok := t.retried[*causation]; ok {
			return retry
		}
	}
	return raw
}

// fold uses the version of the generation that is live for the period.
func (t *tenantVerdicts) fold(e *events.Envelope) (key Key, delta Delta, err error) {
	for _, live := range t.folds {
		key, delta, err = live.fold(e)
		if err != nil || live.period == "" || live.period == key.PeriodKey {
			return key, delta, err
		}
	}
	return key, delta, query.ErrNoLiveGeneration
}
