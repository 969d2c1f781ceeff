package projections_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// lines are the logged lines.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// with returns the lines of a level.
func (l *lines) with(level string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.all.String()) {
		if strings.Contains(line, "level="+level) {
			found = append(found, line)
		}
	}
	return found
}

// A generation in use is dropped later, with a warning only if it stays in use for
// long.
func TestAGenerationInUseIsDroppedAnotherTime(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 10, may))
	y.settle()
	r := y.built(commands.StartRebuild{})
	_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, r.ID, "test")
	y.must(err)
	cleaner := func(patience time.Duration) (*rebuild.Rebuilder, *lines) {
		b, said := y.rebuilder(100), &lines{}
		b.Patience, b.Logger = patience, slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
		return b, said
	}
	user, err := y.pool.Begin(t.Context())
	y.must(err)
	defer func() { _ = user.Rollback(context.Background()) }()
	if tag, err := user.Exec(t.Context(), `SELECT FROM consumer_checkpoints WHERE generation = $1 LIMIT 1 FOR UPDATE`, r.Generation); err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}

	usual, said := cleaner(0)
	y.whileRebuilding(func() { y.until(func() bool { return len(said.with("DEBUG"))+len(said.with("WARN")) > 0 }) }, usual)
	if warned := said.with("WARN"); len(warned) > 0 {
		t.Errorf("a moment's lock is warned of: %s", warned)
	}
	short, said := cleaner(time.Nanosecond)
	y.whileRebuilding(func() { y.until(func() bool { return len(said.with("WARN")) > 0 }) }, short)
	if warned := said.with("WARN")[0]; !strings.Contains(warned, "others had a lock of it: drop generation") {
		t.Errorf("long kept: %s", warned)
	}

	y.must(user.Rollback(t.Context()))
	last, said := cleaner(0)
	y.whileRebuilding(func() { y.until(func() bool { return len(said.with("INFO")) > 0 }) }, last)
	if dropped := said.with("INFO")[0]; !strings.Contains(dropped, "a generation was dropped") {
		t.Errorf("when it is free: %s", dropped)
	}
}

// heldPurge is a pool whose deletions of a dropped generation wait.
type heldPurge struct {
	*pgxpool.Pool
	began func()
	let   chan struct{}
}

func (p *heldPurge) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.HasPrefix(sql, "DELETE FROM") {
		p.began()
		select {
		case <-p.let:
		case <-ctx.Done():
			return pgconn.CommandTag{}, ctx.Err()
		}
	}
	return p.Pool.Exec(ctx, sql, args...)
}

// TestARebuildBeginsWhileADroppedGenerationIsPurged: the rows of a large generation are deleted beside new rebuilds.
func TestARebuildBeginsWhileADroppedGenerationIsPurged(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 10, may))
	y.settle()
	r := y.built(commands.StartRebuild{})
	_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, r.ID, "test")
	y.must(err)
	began := make(chan struct{})
	held := &heldPurge{y.pool, sync.OnceFunc(func() { close(began) }), make(chan struct{})}
	b := y.rebuilder(100)
	b.Pool = held
	y.whileRebuilding(func() {
		<-began
		y.ready(y.start(commands.StartRebuild{Projection: projections.ProjectionUsage}))
		close(held.let)
		y.until(func() (purged bool) {
			y.must(y.pool.QueryRow(t.Context(), `SELECT purged FROM projection_generations WHERE projection = $1 AND generation = $2`, r.Projection, r.Generation).Scan(&purged))
			return purged
		})
	}, b)
}

// A generation is dropped although some partition of it is always in use, as under load.
func TestAGenerationUnderLoadIsDropped(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 10, may))
	y.settle()
	r := y.built(commands.StartRebuild{})
	_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, r.ID, "test")
	y.must(err)
	ctx, stop := context.WithCancel(t.Context())
	var users sync.WaitGroup
	defer users.Wait()
	defer stop()
	const lockHalf = `SELECT FROM consumer_checkpoints WHERE generation = $1 AND partition % 2 = $2 ORDER BY partition FOR UPDATE`
	users.Go(func() {
		var holds pgx.Tx
		for turn := 0; ctx.Err() == nil; turn++ { // it locks one half before it lets go of the other
			next, err := y.pool.Begin(context.Background())
			if err == nil {
				_, err = next.Exec(context.Background(), lockHalf, r.Generation, turn%2)
			}
			if err != nil {
				t.Error(err)
				break
			}
			if holds != nil {
				_ = holds.Rollback(context.Background())
			}
			holds = next
		}
		_ = holds.Rollback(context.Background())
	})
	cleaner, said := y.rebuilder(100), &lines{}
	cleaner.Logger = slog.New(slog.NewTextHandler(said, nil))
	y.whileRebuilding(func() { y.until(func() bool { return len(said.with("INFO")) > 0 }) }, cleaner)
	if dropped := said.with("INFO"); len(dropped) != 1 || !strings.Contains(dropped[0], "a generation was dropped") {
		t.Errorf("logged %s", dropped)
	}
}

// A list does not go on in a generation that no longer gets the newest usage, although its rows are still there.
func TestP5_PagesOfAGenerationThatIsFedNoLongerAreRefused(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	tenants := y.tenants(2)
	for i, tenant := range tenants {
		y.append(usageEvent(tenant, fmt.Sprint("a", i), "calls", 10, may), usageEvent(tenant, fmt.Sprint("b", i), "calls", 10, may.AddDate(0, 1, 0)))
	}
	y.settle()
	of, all := usage.AggregateQuery{TenantID: tenants[0], Limit: 1}, usage.PeriodQuery{PeriodKey: "2026-05", Limit: 1}
	figures, err := y.reads.Aggregates(t.Context(), tenantViewer(tenants[0]), of)
	y.must(err)
	period, err := y.reads.OfPeriod(t.Context(), operator, all)
	y.must(err)
	y.must(y.promote(y.built(commands.StartRebuild{})))
	of.After, all.After = figures.Next, period.Next
	refused := func(when string, ofTenant, ofAll bool) {
		_, err := y.reads.Aggregates(t.Context(), tenantViewer(tenants[0]), of)
		if (err == query.ErrCursorInvalid) != ofTenant || err != nil && !ofTenant {
			t.Errorf("%s: a page of the tenant: %v", when, err)
		}
		_, err = y.reads.OfPeriod(t.Context(), operator, all)
		if (err == query.ErrCursorInvalid) != ofAll || err != nil && !ofAll {
			t.Errorf("%s: a page of all tenants: %v", when, err)
		}
	}
	change := func(sql string, args ...any) { y.must(second(y.pool.Exec(t.Context(), sql, args...))) }
	const checkpoint = ` consumer_checkpoints %s WHERE consumer = 'meterplex-usage-aggregator' AND generation = 1 AND partition = $1`
	own := events.PartitionOf(tenants[0])
	refused("the generation is kept", false, false)
	change(`UPDATE projection_generations SET broken = 'it failed' WHERE projection = 'usage_aggregates' AND generation = 1`)
	refused("it is broken", true, true)
	change(`UPDATE projection_generations SET broken = NULL`)
	change(`UPDATE`+fmt.Sprintf(checkpoint, `SET joined = false`), own)
	refused("it is not fed in the partition", true, true)
	change(`UPDATE`+fmt.Sprintf(checkpoint, `SET joined = true`), own)
	change(`DELETE FROM`+fmt.Sprintf(checkpoint, ``), (own+1)%events.Partitions)
	refused("another partition's checkpoint is gone", false, true)
	change(`DELETE FROM`+fmt.Sprintf(checkpoint, ``), own)
	refused("the partition's checkpoint is gone", true, true)
}
