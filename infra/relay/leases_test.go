package relay_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/relay"
)

// slowHeartbeats is a pool whose server has not answered the heartbeats yet. A heartbeat that its caller cancels
// is written late: the server had it already.
type slowHeartbeats struct {
	relay.Pool
	sent   chan struct{}
	answer chan struct{}
	late   []func()
}

func (p *slowHeartbeats) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !strings.Contains(sql, "INSERT INTO relay_instances") {
		return p.Pool.QueryRow(ctx, sql, args...)
	}
	select {
	case p.sent <- struct{}{}:
	default:
	}
	select {
	case <-p.answer:
		return p.Pool.QueryRow(ctx, sql, args...)
	case <-ctx.Done():
		p.late = append(p.late, func() { _ = p.Pool.QueryRow(context.Background(), sql, args...).Scan(new(int)) })
		return cancelled{ctx.Err()}
	}
}

type cancelled struct{ err error }

func (c cancelled) Scan(...any) error { return c.err }

// A relay that has stopped is not live: no heartbeat of it comes after its row is deleted.
func TestAHeartbeatEndsBeforeTheRelayStops(t *testing.T) {
	t.Parallel()
	w := newRelayFixture(t)
	r := w.relay("one")
	r.LeaseTTL = time.Minute // a round may take half of it
	pool := &slowHeartbeats{Pool: r.Pool, sent: make(chan struct{}, 1), answer: make(chan struct{})}
	r.Pool = pool
	stop := w.start(r)
	<-pool.sent
	time.AfterFunc(500*time.Millisecond, func() { close(pool.answer) })
	stop()
	for _, write := range pool.late {
		write()
	}
	if n := w.int(`SELECT count(*) FROM relay_instances`); n != 0 {
		t.Errorf("%d relays are live after the only one has stopped", n)
	}
}
