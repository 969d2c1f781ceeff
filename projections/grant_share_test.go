package projections_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
)

// loadCount counts the loads of grants through a pool.
type loadCount struct{ n atomic.Int64 }

func (c *loadCount) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		if strings.Contains(q.SQL, "LEFT JOIN entitlement_grants") {
			c.n.Add(1)
		}
	}
	return ctx
}
func (c *loadCount) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *loadCount) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (c *loadCount) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (c *loadCount) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Checks that wait for a position and find no entry new enough share a load: the
// running one began too early for them, the one after it serves all.
func TestChecksAtAPositionShareALoad(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, quota("calls", 100, domain.LimitHard, domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "a", "calls", 1, may))[0]
	s.settle()
	cfg := s.pool.Config()
	loads := &loadCount{}
	cfg.ConnConfig.Tracer = loads
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	s.must(err)
	defer pool.Close()
	cache := entitlements.NewCache(s.pool, pool)
	reads := newReads(query.DB{Pool: s.pool}, cache, s.reads.Now)
	hold, err := s.pool.Begin(t.Context()) // blocks the first load
	s.must(err)
	defer func() { _ = hold.Rollback(context.Background()) }()
	s.must(second(hold.Exec(t.Context(), `LOCK TABLE entitlement_grants IN ACCESS EXCLUSIVE MODE`)))
	var g errgroup.Group
	for range 60 {
		g.Go(func() error {
			c, err := reads.Check(t.Context(), tenantViewer(tenant), tenant, "calls", 1, query.Wait{MinPosition: &at, For: 10 * time.Second})
			if err == nil && (!c.Allowed || c.Used.String() != "1" || c.AsOf.Number < at.Number) {
				t.Errorf("%+v", c)
			}
			return err
		})
	}
	time.Sleep(time.Second)
	s.must(hold.Rollback(context.Background()))
	s.must(g.Wait())
	if n := loads.n.Load(); n == 0 || n > 6 {
		t.Errorf("%d loads for 60 checks", n)
	}
}
