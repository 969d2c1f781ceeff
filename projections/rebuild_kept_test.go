package projections_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

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
	tier.AtSize(t)
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
	y.whileRebuilding(func() { y.until(func() bool { return y.dropped(r) }) }, y.rebuilder(100))
}

// dropped reports whether the generation of a rebuild is dropped.
func (y *rebuildFixture) dropped(r domain.Rebuild) (dropped bool) {
	y.Helper()
	y.must(y.pool.QueryRow(context.Background(), `SELECT dropped_at IS NOT NULL FROM projection_generations WHERE projection = $1 AND generation = $2`, r.Projection, r.Generation).Scan(&dropped))
	return dropped
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
