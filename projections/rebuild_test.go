package projections_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// rebuildFixture is a pipeline fixture in which projections are rebuilt.
type rebuildFixture struct {
	*pipelineFixture
	rebuilds *commands.Rebuilds
	folds    models.Folds
}

var operatorKey = commands.Caller{TenantID: events.Platform, KeyID: uuid.MustParse("00000000-0000-7000-8000-000000000001"), Scopes: []string{commands.ScopeBilling}}

func newRebuildFixture(t testing.TB) *rebuildFixture {
	return newRebuildFixtureOf(newPipelineFixture(t))
}

func newRebuildFixtureOf(s *pipelineFixture) *rebuildFixture {
	y := &rebuildFixture{pipelineFixture: s, folds: models.DefaultFolds()}
	y.rebuilds = &commands.Rebuilds{Store: y.rebuildStore(), Now: time.Now, NewID: newID}
	y.deploy()
	return y
}

// deploy restarts the consumers, the reads and the commands with the rebuild fixture's folds.
func (y *rebuildFixture) deploy() {
	y.rebuilds.Projections = nil
	for _, p := range y.projections() {
		y.rebuilds.Projections = append(y.rebuilds.Projections, commands.Projection{Name: p.Name, Consumer: p.Consumer.Name, Newest: p.Newest(), ByPeriod: p.ByPeriod})
		for _, r := range []*consume.Runner{y.aggregating, y.lettering, y.entitling, y.summing} {
			if r.Consumer.Name == p.Consumer.Name {
				r.Consumer = p.Consumer
			}
		}
	}
	y.reads.Folds, y.reads.List = y.folds.Usage, y.projections()
}

func (y *rebuildFixture) projections() []projections.Projection {
	list := models.List(y.folds, newID)
	for i := range list {
		writeTotalsOften(&list[i].Consumer)
	}
	return list
}

// rebuilder is one instance's; chunk bounds the fold of one transaction.
func (y *rebuildFixture) rebuilder(chunk int64) *rebuild.Rebuilder {
	return &rebuild.Rebuilder{
		Pool: y.pool, Log: y.log, NewID: newID, Logger: slog.New(slog.DiscardHandler), Instance: "test", Every: 5 * time.Millisecond, Chunk: chunk,
		Projections: y.projections(),
		Verify:      func(context.Context, domain.Rebuild) error { return errors.New("no verify here") },
	}
}

// whileRebuilding runs rebuilders while something is done.
func (y *rebuildFixture) whileRebuilding(do func(), rebuilders ...*rebuild.Rebuilder) {
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

func (y *rebuildFixture) start(in commands.StartRebuild) domain.Rebuild {
	y.Helper()
	if in.Reason == "" {
		in.Reason = "test"
	}
	r, err := y.rebuilds.Start(context.Background(), commands.Request{By: operatorKey}, in)
	y.must(err)
	return r
}

func (y *rebuildFixture) state(r domain.Rebuild) string {
	y.Helper()
	now, err := y.rebuildStore().Rebuild(context.Background(), r.ID)
	y.must(err)
	return now.State
}

// ready waits until a rebuild has ended.
func (y *rebuildFixture) ready(r domain.Rebuild) {
	y.Helper()
	y.until(func() bool {
		now, err := y.rebuildStore().Rebuild(context.Background(), r.ID)
		y.must(err)
		if now.State == domain.RebuildFailed {
			y.Fatalf("the rebuild failed: %s", now.Failure)
		}
		return now.State == domain.RebuildReady
	})
}

// dumps of each projection's rows, in the order of their keys, without the generation.
var dumps = map[string]string{
	projections.ProjectionUsage: `SELECT coalesce(string_agg(row::text, E'\n' ORDER BY tenant_id, feature, period_key, subscription_id), '') FROM (
		SELECT partition, tenant_id, feature, period_key, subscription_id, amount, event_count, applied_count, period_start, period_end, last_event_at
		FROM usage_aggregates WHERE generation = $1) row`,
	projections.ProjectionEntitlements: `SELECT coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature) FROM (
		SELECT tenant_id, feature, subscription_id, type, unit, "limit", limit_behavior, reset_period, on_ingest FROM entitlement_grants WHERE generation = $1) row), '')
		|| coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature, period_key) FROM (
		SELECT tenant_id, feature, period_key, used FROM entitlement_usage WHERE generation = $1) row), '')`,
	projections.ProjectionSeries: `SELECT coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature, hour, group_values) FROM (
		SELECT partition, tenant_id, feature, hour, group_values, amount, event_count FROM usage_series WHERE generation = $1) row), '')
		|| coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature, key, value) FROM (
		SELECT tenant_id, feature, key, value FROM usage_series_values WHERE generation = $1) row), '')`,
	projections.ProjectionDeadLetters: `SELECT coalesce(string_agg(row::text, E'\n' ORDER BY id), '') FROM (
		SELECT id, partition, tenant_id, stage, status, code, reason, details::text, producer_event_id, feature, source_position, topic,
		kafka_partition, kafka_offset, payload::text, retry_count, first_failed_at, last_failed_at FROM dead_letter_events WHERE generation = $1) row`,
}

// sameRows compares two generations byte for byte, in one snapshot, and their positions.
func (y *rebuildFixture) sameRows(r domain.Rebuild, other int) error {
	y.Helper()
	var a, b string
	var apart int
	y.must(pgx.BeginTxFunc(context.Background(), y.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(context.Background(), dumps[r.Projection], r.Generation).Scan(&a); err != nil {
			return err
		}
		if err := tx.QueryRow(context.Background(), dumps[r.Projection], other).Scan(&b); err != nil {
			return err
		}
		return tx.QueryRow(context.Background(), `SELECT count(*) FROM consumer_checkpoints a JOIN consumer_checkpoints b USING (consumer, partition)
			WHERE a.consumer = $1 AND a.generation = $2 AND b.generation = $3 AND (a.position <> b.position OR NOT a.joined OR NOT b.joined)`,
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

// recordMixedUsage records usage of several tenants with all that can become of it.
func (y *rebuildFixture) recordMixedUsage(tenants []uuid.UUID, from, n int) {
	y.Helper()
	var batch []events.Pending
	for i := from; i < from+n; i++ {
		feature := []string{"calls", "tokens", "unknown", "broken"}[i%7%4]
		batch = append(batch, usageEvent(tenants[i%len(tenants)], fmt.Sprint("e", i), feature, int64(i+1), may.Add(time.Duration(i)*time.Hour)))
	}
	y.append(batch...)
}

func (y *rebuildFixture) tenants(n int) (all []uuid.UUID) {
	for range n {
		tenant := newID()
		y.must(second(y.pool.Exec(context.Background(), `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'Acme', 'small', 'ACTIVE', now())`, tenant)))
		y.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("tokens", domain.ResetNever), grant("broken", domain.ResetAnnually))
		all = append(all, tenant)
	}
	return all
}

func TestP5_ARebuiltGenerationIsTheLiveOneByteForByte(t *testing.T) {
	y := newRebuildFixture(t)
	tenants := y.tenants(5)
	y.recordMixedUsage(tenants, 0, 300)
	y.settle()
	for name := range dumps {
		r := y.start(commands.StartRebuild{Projection: name, Workers: 3})
		y.whileRebuilding(func() { y.ready(r) }, y.rebuilder(20))
		if err := y.sameRows(r, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		y.recordMixedUsage(tenants, 300, 50) // fed together from here on
		y.settle()
		if err := y.sameRows(r, 1); err != nil {
			t.Errorf("%s, later: %v", name, err)
		}
	}
}

// A worker that rests after each piece of the log folds every event of it, those on both
// sides of a rest, too.
func TestP5_ARebuildThatRestsFoldsEveryPiece(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	head := func(at int) {
		y.must(second(y.pool.Exec(t.Context(), `UPDATE log_heads SET position = $2 WHERE partition = $1`, events.PartitionOf(tenant), at)))
	}
	// A piece is 4096 positions: verdicts are before its end, at it, and after it.
	for n, at := range []int{4089, 8185} {
		head(at)
		for i := range 6 {
			y.append(usageEvent(tenant, fmt.Sprint("e", n, "/", i), "calls", 1<<i, may))
		}
		y.settle()
	}
	var around int
	y.must(y.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE partition = $1 AND topic = 2 AND position IN (4096, 4097, 8192, 8193)`,
		events.PartitionOf(tenant)).Scan(&around))
	if around != 4 {
		t.Fatalf("%d verdicts stand around the rests", around)
	}
	b := y.rebuilder(1 << 20)
	b.Share, b.Join = 50, 1 // joining does not pause
	r := y.start(commands.StartRebuild{Projection: projections.ProjectionUsage})
	y.whileRebuilding(func() { y.ready(r) }, b)
	if err := y.sameRows(r, 1); err != nil {
		t.Error(err)
	}
}
