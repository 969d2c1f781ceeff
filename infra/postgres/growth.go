package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// growth makes a new pool wait for a session that becomes free before it opens another one. At the start of an instance some
// twenty loops look into the database at once, each for about a millisecond. Sessions of their own would cost the server and the
// instance ten milliseconds of a processor each, and memory for as long as the instance runs.
type growth struct {
	turn  chan struct{}
	time  time.Duration // growthTime
	wait  time.Duration // growthWait
	until atomic.Int64  // nanoseconds since 1970; 0: no caller has found the pool without a free session yet
	// pool is the first one that uses it: copies of its configuration make other pools, which do not wait.
	pool atomic.Pointer[pgxpool.Pool]
}

const (
	// growthTime is how long a pool is new from the first caller on that found it without a free session.
	growthTime = time.Second
	// growthWait bounds the wait of a caller for a free session.
	growthWait = 100 * time.Millisecond
	// growthLook is the pause between two looks at a pool without a free session.
	growthLook = time.Millisecond
)

func newGrowth() *growth {
	return &growth{turn: make(chan struct{}, 1), time: growthTime, wait: growthWait}
}

// turnKey marks the context of a caller that has the turn.
type turnKey struct{}

// TraceAcquireStart implements pgxpool.AcquireTracer. One caller has its turn at a time: two would take the last free session for theirs.
func (g *growth) TraceAcquireStart(ctx context.Context, pool *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if until := g.until.Load(); until != 0 && time.Now().UnixNano() > until || !g.pool.CompareAndSwap(nil, pool) && g.pool.Load() != pool {
		return ctx
	}
	waited, end := context.WithTimeout(ctx, g.wait)
	defer end()
	select {
	case g.turn <- struct{}{}:
	case <-waited.Done():
		return ctx
	}
	for growsNext(pool) && waited.Err() == nil {
		g.until.CompareAndSwap(0, time.Now().Add(g.time).UnixNano())
		select {
		case <-time.After(growthLook):
		case <-waited.Done():
		}
	}
	return context.WithValue(ctx, turnKey{}, g.turn)
}

// growsNext reports whether the next caller opens a session although one of the others may become free.
func growsNext(pool *pgxpool.Pool) bool {
	s := pool.Stat()
	return s.IdleConns() == 0 && s.TotalConns() > 0 && s.TotalConns() < s.MaxConns()
}

// TraceAcquireEnd implements pgxpool.AcquireTracer.
func (g *growth) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData) {
	if ctx.Value(turnKey{}) == g.turn {
		<-g.turn
	}
}

// TraceQueryStart implements pgx.QueryTracer, which a tracer must.
func (*growth) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*growth) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
