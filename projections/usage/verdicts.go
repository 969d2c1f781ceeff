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

	again     bool // re-aggregated
	causation *uuid.UUID
	folds     bool // the live fold counts it
}

const readLiveVersions = `
SELECT p.period_key, g.fold_version FROM projection_pointers p
JOIN projection_generations g USING (projection, generation)
WHERE p.live AND p.projection = 'usage_aggregates' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
ORDER BY p.flip DESC`

// Keys are prefixes of a tenant's part of the unique index; '0' is the character
// after '/'. + 0 keeps the planner off the partial indexes by subject: of a tenant that its statistics do not know
// it would read all rejections instead.
var readRetries = events.SQL(`
SELECT l.event_id, l.position FROM event_log l
WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key > 'r/' AND l.dedupe_key < 'r0' AND l.subject + 0 = {usage.event.retried}`)

// tenantVerdicts holds the data that decides which of a tenant's verdicts count.
type tenantVerdicts struct {
	tenant    uuid.UUID
	partition int16
	folds     []liveFold          // the latest flip first
	retried   map[uuid.UUID]int64 // positions of retries by their ids; nil: not read
	uncounted map[int64]uncountedUsage
}

// liveFold is the fold of a period's live generation; "": of all periods without their own.
type liveFold struct {
	period string
	fold   Fold
}

// uncountedUsage is the reason why a verdict is not counted.
type uncountedUsage struct{ code, reason string }

// verdictsOf reads the live folds of a tenant.
func (r *Reads) verdictsOf(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) (*tenantVerdicts, error) {
	t := &tenantVerdicts{tenant: tenant, partition: events.PartitionOf(tenant), uncounted: make(map[int64]uncountedUsage)}
	return t, query.Run(ctx, tx, query.New(readLiveVersions, []any{tenant}, query.Each(func(rows pgx.Rows) error {
		var period, version string
		if err := rows.Scan(&period, &version); err != nil {
			return err
		}
		fold, err := r.Folds.Of(version)
		t.folds = append(t.folds, liveFold{period, fold})
		return err
	})))
}

// readRetried reads the positions of the tenant's retries, once.
func (t *tenantVerdicts) readRetried(ctx context.Context, tx pgx.Tx) error {
	if t.retried != nil {
		return nil
	}
	t.retried = make(map[uuid.UUID]int64)
	return query.Run(ctx, tx, query.New(readRetries, []any{t.partition, t.tenant}, query.Each(func(rows pgx.Rows) error {
		var id uuid.UUID
		var position int64
		err := rows.Scan(&id, &position)
		t.retried[id] = position
		return err
	})))
}

func (t *tenantVerdicts) scanUncounted(rows pgx.Rows) error {
	var source int64
	var why uncountedUsage
	err := rows.Scan(&source, &why.code, &why.reason)
	t.uncounted[source] = why
	return err
}

// verdictColumns are the columns of l, a row of the log, that scan reads.
const verdictColumns = `l.position, l.subject, l.causation_id, l.occurred_at, l.dedupe_key, l.body`

// scan reads a verdict and folds it: the aggregator has not counted a verdict that the fold
// refuses now. The cause is that of a first verdict.
func (t *tenantVerdicts) scan(rows pgx.Rows) (countedUsage, error) {
	e := events.Envelope{TenantID: t.tenant, Position: events.Position{Partition: t.partition}}
	var c countedUsage
	if err := rows.Scan(&e.Position.Number, &e.Subject, &c.causation, &e.OccurredAt, &e.DedupeKey, (*[]byte)(&e.Payload)); err != nil {
		return c, err
	}
	c.position, c.again = e.Position.Number, e.Subject == events.Reaggregated
	failure := projections.Try(e, func() (err error) {
		if c.verdict, err = codec.VerdictOf(&e); err == nil {
			c.key, c.delta, err = t.fold(&e, c.verdict)
		}
		return err
	})
	c.folds = failure == nil
	if c.cause = c.verdict.RawPosition; c.again {
		c.cause = c.position
	}
	return c, nil
}

// causeAmong returns the cause of a verdict on a recorded event: its retry, if retried has one, or the event.
// retried holds positions of retries by their ids.
func causeAmong(retried map[uuid.UUID]int64, raw int64, causation *uuid.UUID) int64 {
	if causation != nil {
		if retry, ok := retried[*causation]; ok {
			return retry
		}
	}
	return raw
}

// fold uses the version of the generation that is live for the period.
func (t *tenantVerdicts) fold(e *events.Envelope, v events.Validated) (key Key, delta Delta, err error) {
	for _, live := range t.folds {
		key, delta, err = live.fold.inItsFigure(e, v)
		if err != nil || live.period == "" || live.period == key.PeriodKey {
			return key, delta, err
		}
	}
	return key, delta, query.ErrNoLiveGeneration
}
