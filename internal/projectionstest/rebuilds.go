package projectionstest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// Rebuilds is a pipeline fixture in which projections are rebuilt.
type Rebuilds struct {
	*Pipeline
	Commands *repair.Rebuilds
	Folds    models.Folds
}

// NewRebuilds makes the fixture on a database of its own.
func NewRebuilds(t testing.TB) *Rebuilds {
	return RebuildsOf(NewPipeline(t))
}

// RebuildsOf adds the commands on rebuilds to a pipeline.
func RebuildsOf(s *Pipeline) *Rebuilds {
	y := &Rebuilds{Pipeline: s, Folds: models.DefaultFolds()}
	y.Commands = &repair.Rebuilds{Store: y.RebuildStore(), Now: time.Now, NewID: NewID}
	y.Deploy()
	return y
}

// OperatorKey is a caller that may do everything.
var OperatorKey = commands.Caller{TenantID: events.Platform, KeyID: uuid.MustParse("00000000-0000-7000-8000-000000000001"),
	Scopes: []string{commands.ScopeBilling}}

// Deploy restarts the consumers, the reads and the commands with the rebuild fixture's folds.
func (y *Rebuilds) Deploy() {
	y.Commands.Projections = nil
	for _, p := range y.Projections() {
		y.Commands.Projections = append(y.Commands.Projections, repair.Projection{Name: p.Name, Consumer: p.Consumer.Name,
			Newest: p.Newest(), ByPeriod: p.ByPeriod})
		for _, r := range []*consume.Runner{y.Aggregating, y.Lettering, y.Entitling, y.Summing} {
			if r.Consumer.Name == p.Consumer.Name {
				r.Consumer = p.Consumer
			}
		}
	}
	y.Reads.Folds, y.Reads.List = y.Folds.Usage, y.Projections()
}

// Projections lists the projections with the fixture's folds.
func (y *Rebuilds) Projections() []projections.Projection {
	list := models.List(y.Folds, NewID)
	for i := range list {
		writeTotalsOften(&list[i].Consumer)
	}
	return list
}

// Rebuilder is one instance's; chunk bounds the fold of one transaction.
func (y *Rebuilds) Rebuilder(chunk int64) *rebuild.Rebuilder {
	return &rebuild.Rebuilder{
		Pool: y.Pool, Log: y.EventLog, NewID: NewID, Logger: slog.New(slog.DiscardHandler), Instance: "test", Every: 5 * time.Millisecond,
		Chunk:       chunk,
		Projections: y.Projections(),
		Verify:      func(context.Context, domain.Rebuild) error { return errors.New("no verify here") },
	}
}

// WhileRebuilding runs rebuilders while something is done.
func (y *Rebuilds) WhileRebuilding(do func(), rebuilders ...*rebuild.Rebuilder) {
	y.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var g sync.WaitGroup
	for _, b := range rebuilders {
		g.Go(func() { _ = b.Run(ctx) })
	}
	defer g.Wait()
	defer stop()
	do()
}

// Start requests a rebuild.
func (y *Rebuilds) Start(in repair.StartRebuild) domain.Rebuild {
	y.Helper()
	if in.Reason == "" {
		in.Reason = "test"
	}
	r, err := y.Commands.Start(context.Background(), commands.Request{By: OperatorKey}, in)
	y.Must(err)
	return r
}

// Rebuilt is a rebuild that is READY.
func (y *Rebuilds) Rebuilt(in repair.StartRebuild) domain.Rebuild {
	y.Helper()
	r := y.Start(in)
	y.WhileRebuilding(func() { y.Ready(r) }, y.Rebuilder(1000))
	return r
}

// Built is a rebuild of figures that is READY.
func (y *Rebuilds) Built(in repair.StartRebuild) domain.Rebuild {
	y.Helper()
	in.Projection = projections.ProjectionUsage
	return y.Rebuilt(in)
}

// State returns the state of a rebuild.
func (y *Rebuilds) State(r domain.Rebuild) string {
	y.Helper()
	now, err := y.RebuildStore().Rebuild(context.Background(), r.ID)
	y.Must(err)
	return now.State
}

// Ready waits until a rebuild has ended.
func (y *Rebuilds) Ready(r domain.Rebuild) {
	y.Helper()
	y.Until(func() bool {
		now, err := y.RebuildStore().Rebuild(context.Background(), r.ID)
		y.Must(err)
		if now.State == domain.RebuildFailed {
			y.Fatalf("the rebuild failed: %s", now.Failure)
		}
		return now.State == domain.RebuildReady
	})
}

// Promote lets readers see a rebuild.
func (y *Rebuilds) Promote(r domain.Rebuild) error {
	_, err := y.Commands.Promote(context.Background(), commands.Request{By: OperatorKey}, r.ID, "test")
	return err
}

// RollBack lets readers see the previous generation.
func (y *Rebuilds) RollBack(r domain.Rebuild) error {
	_, err := y.Commands.RollBack(context.Background(), commands.Request{By: OperatorKey}, r.ID, "test")
	return err
}

// Diff compares a rebuild with the live generation.
func (y *Rebuilds) Diff(q rebuild.DiffQuery) rebuild.Diff {
	y.Helper()
	q.Limit = cmp.Or(q.Limit, 1000)
	d, err := y.Reads.Diff(context.Background(), q)
	y.Must(err)
	return d
}

// live lets every consumer follow the log while something is done.
func (y *Rebuilds) Live(do func()) {
	y.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var g sync.WaitGroup
	for _, r := range []*consume.Runner{y.Validating, y.Aggregating, y.Lettering, y.Entitling, y.Summing} {
		g.Go(func() { _ = logtest.Follow(ctx, r, 5*time.Millisecond, nil) })
	}
	defer g.Wait()
	defer stop()
	do()
}

// RetryBroken sends some of the parked verdicts on their way once more, as the
// command router does.
func (y *Rebuilds) RetryBroken(most int) {
	y.Helper()
	rows, err := y.Pool.Query(context.Background(), `SELECT f.event_id, f.tenant_id, v.payload::text FROM event_log_rows f
		JOIN event_log_rows v ON v.partition = f.partition AND v.position = (f.payload ->> 'sourcePosition')::bigint AND v.subject = $2
		WHERE f.subject = $1 AND NOT EXISTS (SELECT FROM event_log_rows r WHERE r.partition = f.partition AND r.tenant_id = f.tenant_id
			AND r.dedupe_key = 'r/' || f.event_id || '/1') LIMIT $3`, events.AggregationFailed, events.UsageValidated, most)
	y.Must(err)
	defer rows.Close()
	var again []events.Pending
	for rows.Next() {
		var id, tenant uuid.UUID
		var body string
		y.Must(rows.Scan(&id, &tenant, &body))
		var v events.Validated
		y.Must(json.Unmarshal([]byte(body), &v))
		p := Plain(tenant, events.Reaggregated, events.Counts{Parked: -1}, events.Reaggregate{DeadLetterID: id, Attempt: 1, Validated: v})
		p.DedupeKey = events.KeyRetry(id, 1)
		again = append(again, p)
	}
	y.Must(rows.Err())
	rows.Close()
	for _, p := range again {
		y.Append(p)
	}
}

// Dumps of each projection's rows, in the order of their keys, without the generation.
var Dumps = map[string]string{
	projections.ProjectionUsage: `SELECT coalesce(string_agg(row::text, E'\n' ORDER BY tenant_id, feature, period_key, subscription_id), '')
		FROM (
		SELECT partition, tenant_id, feature, period_key, subscription_id, amount, event_count, applied_count, period_start, period_end,
		last_event_at
		FROM usage_aggregates WHERE generation = $1) row`,
	projections.ProjectionEntitlements: `SELECT coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature) FROM (
		SELECT tenant_id, feature, subscription_id, type, unit, "limit", limit_behavior, reset_period, on_ingest FROM entitlement_grants
		WHERE generation = $1) row), '')
		|| coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature, period_key) FROM (
		SELECT tenant_id, feature, period_key, used FROM entitlement_usage WHERE generation = $1) row), '')`,
	projections.ProjectionSeries: `SELECT coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature, hour, group_values)
		FROM (
		SELECT partition, tenant_id, feature, hour, group_values, amount, event_count FROM usage_series WHERE generation = $1) row), '')
		|| coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature, key, value) FROM (
		SELECT tenant_id, feature, key, value FROM usage_series_values WHERE generation = $1) row), '')`,
	projections.ProjectionRefusals: `SELECT coalesce(string_agg(row::text, E'\n' ORDER BY tenant_id, code, feature), '') FROM (
		SELECT partition, tenant_id, code, feature, count, first_at, last_at, samples::text FROM usage_refusals WHERE generation = $1) row`,
	projections.ProjectionDeadLetters: `SELECT coalesce(string_agg(row::text, E'\n' ORDER BY id), '') FROM (
		SELECT id, partition, tenant_id, stage, status, code, reason, details::text, producer_event_id, feature, source_position, topic,
		kafka_partition, kafka_offset, payload::text, retry_count, first_failed_at, last_failed_at FROM dead_letter_events
		WHERE generation = $1) row`,
}

// SameRows compares two generations byte for byte, in one snapshot, and their positions.
func (y *Rebuilds) SameRows(r domain.Rebuild, other int) error {
	y.Helper()
	var a, b string
	var apart int
	y.Must(pgx.BeginTxFunc(context.Background(), y.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(context.Background(), Dumps[r.Projection], r.Generation).Scan(&a); err != nil {
			return err
		}
		if err := tx.QueryRow(context.Background(), Dumps[r.Projection], other).Scan(&b); err != nil {
			return err
		}
		return tx.QueryRow(context.Background(),
			`SELECT count(*) FROM consumer_checkpoints a JOIN consumer_checkpoints b USING (consumer, partition)
			WHERE a.consumer = $1 AND a.generation = $2 AND b.generation = $3 AND (a.position <> b.position OR NOT a.joined
			OR NOT b.joined)`,
			r.Consumer, r.Generation, other).Scan(&apart)
	}))
	if apart != 0 {
		return fmt.Errorf("%d partitions stand apart", apart)
	}
	if a != b {
		return fmt.Errorf("generation %d has\n%s\nand generation %d has\n%s", r.Generation, a, other, b)
	}
	return nil
}

// RecordMixedUsage records usage of several tenants with all that can become of it.
func (y *Rebuilds) RecordMixedUsage(tenants []uuid.UUID, from, n int) {
	y.Helper()
	var batch []events.Pending
	for i := from; i < from+n; i++ {
		feature := []string{"calls", "tokens", "unknown", "broken"}[i%7%4]
		batch = append(batch, Usage(tenants[i%len(tenants)], fmt.Sprint("e", i), feature, int64(i+1), May.Add(time.Duration(i)*time.Hour)))
	}
	y.Append(batch...)
}

// Tenants makes tenants, each with a subscription.
func (y *Rebuilds) Tenants(n int) (all []uuid.UUID) {
	for range n {
		tenant := NewID()
		y.Must(Second(y.Pool.Exec(context.Background(), `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'Acme',
			'small', 'ACTIVE', now())`, tenant)))
		y.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("tokens", domain.ResetNever),
			Grant("broken", domain.ResetAnnually))
		all = append(all, tenant)
	}
	return all
}
