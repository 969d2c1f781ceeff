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
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
)

// Checks that wait for a position and find no entry new enough share a load: the
// running one began too early for them, the one after it serves all.
func TestChecksAtAPositionShareALoad(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, quota("calls", 100, domain.LimitHard, domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "a", "calls", 1, may))[0]
	s.settle()
	cfg := s.pool.Config()
	var loads atomic.Int64
	cfg.ConnConfig.Tracer = localtest.RoundTrips(func(_ *pgx.Conn, statements []string) {
		if strings.Contains(strings.Join(statements, "\n"), "LEFT JOIN entitlement_grants") {
			loads.Add(1)
		}
	})
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
			c, err := reads.Check(t.Context(), tenantViewer(tenant), tenant, "calls", 1, query.Wait{MinPosition: &at, For: time.Minute})
			if err == nil && (!c.Allowed || c.Used.String() != "1" || c.AsOf.Number < at.Number) {
				t.Errorf("%+v", c)
			}
			return err
		})
	}
	s.until(func() bool { return s.lockWaiters() > 0 })
	time.Sleep(100 * time.Millisecond) // more of them wait
	s.must(hold.Rollback(context.Background()))
	s.must(g.Wait())
	if n := loads.Load(); n == 0 || n > 6 {
		t.Errorf("%d loads for 60 checks", n)
	}
}
