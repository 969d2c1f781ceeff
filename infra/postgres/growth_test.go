package postgres

import (
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/local/localtest"
)

// Callers that begin together and look shortly share few sessions of a new pool.
func TestANewPoolOpensFewSessions(t *testing.T) {
	pool, _ := openPool(t)
	// A busy machine opens a session in more than growthWait.
	g := pool.Config().ConnConfig.Tracer.(*growth)
	g.time, g.wait = time.Minute, time.Minute
	var looks sync.WaitGroup
	for range 14 {
		looks.Go(func() {
			if _, err := pool.Exec(t.Context(), `SELECT 1`); err != nil {
				t.Error(err)
			}
		})
	}
	looks.Wait()
	if n := pool.Stat().TotalConns(); n > 7 {
		t.Errorf("%d sessions for 14 callers", n)
	}
}

// Sessions that are held do not keep a new pool from opening as many as it may.
func TestANewPoolGrowsWhileItsSessionsAreHeld(t *testing.T) {
	pool, _ := openPool(t)
	for n := range pool.Config().MaxConns {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatalf("session %d: %v", n, err)
		}
		defer c.Release()
	}
}

func TestOnlyANewPoolWaits(t *testing.T) {
	pool, err := Open(t.Context(), Config{URL: localtest.Migrated(t, Migrate)})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	held, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	g := newGrowth()
	g.pool.Store(pool)
	began := time.Now()
	ctx := g.TraceAcquireStart(t.Context(), pool, pgxpool.TraceAcquireStartData{})
	if waited := time.Since(began); waited < growthWait || ctx.Value(turnKey{}) != g.turn {
		t.Errorf("a caller of a new pool waited %s, and has the turn: %v", waited, ctx.Value(turnKey{}))
	}
	g.TraceAcquireEnd(ctx, pool, pgxpool.TraceAcquireEndData{})
	if len(g.turn) != 0 {
		t.Error("the turn has not ended")
	}
	g.until.Store(time.Now().Add(-time.Second).UnixNano())
	if ctx := g.TraceAcquireStart(t.Context(), pool, pgxpool.TraceAcquireStartData{}); ctx != t.Context() {
		t.Error("a caller of an old pool had to have the turn")
	}
}
