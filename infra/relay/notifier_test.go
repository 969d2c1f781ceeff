package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestAnIdleRelayRunsFewStatements(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newRelayFixture(t)
	const poll = "FROM log_heads h JOIN relay_cursors"
	pool, asked := localtest.Traced(t, w.pool)
	r := w.relay("one")
	r.Pool = pool
	var hinted atomic.Bool
	r.Hinted = hinted.Load
	w.start(r)
	w.until("it holds all", func() bool { return w.heldPartitions("one") == events.Partitions })
	for _, hints := range []bool{false, true} {
		hinted.Store(hints)
		sent, polls, began := asked.Count(""), asked.Count(poll), time.Now()
		time.Sleep(4 * time.Second)
		took := time.Since(began).Seconds()
		all, polled := float64(asked.Count("")-sent)/took, float64(asked.Count(poll)-polls)/took
		t.Logf("hints %v: %.0f statements per second, %.0f of them polls", hints, all, polled)
		// 20 polls per second without hints, 4 with; and 4 statements five times per second at this short lease.
		want := 22.0
		if hints {
			want = 6
		}
		if polled > want || all > want+30 {
			t.Errorf("hints %v: an idle relay sends %.0f statements per second, %.0f of them polls", hints, all, polled)
		}
	}
}

func woken(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A notification of this process comes back from the server. It proves that others arrive, and wakes no relay.
func TestANotifierHearsWhileItListens(t *testing.T) {
	w := newRelayFixture(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	if w.notify.Hearing() {
		t.Error("it hears before it listens")
	}
	reader := w.notify.Reader()
	go func() { ended <- w.notify.Run(ctx) }()
	w.until("it hears", w.notify.Hearing)
	if woken(w.notify.Wake()) || woken(reader) {
		t.Error("its own notification woke its readers")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if w.notify.Hearing() {
		t.Error("it hears after its end")
	}
}

func TestNotifierWakesOtherProcessesAndCoalesces(t *testing.T) {
	w := newRelayFixture(t)
	other := relay.NewNotifier(openPool(t, w.url), quiet())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- w.notify.Run(ctx) }()
	go func() { ended <- other.Run(ctx) }()
	w.until("both hear", func() bool { return w.notify.Hearing() && other.Hearing() })
	reader := other.Reader()
	w.notify.Appended(nil)
	w.until("the other relay is woken", func() bool { return woken(other.Wake()) })
	w.until("another reader there, too", func() bool { return woken(reader) })
	conn, err := pgx.Connect(ctx, w.url)
	must.OK(t, err)
	defer conn.Close(context.Background())
	if _, err := conn.Exec(ctx, `LISTEN meterplex_appended`); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for time.Since(begun) < 300*time.Millisecond {
		w.notify.Appended(nil)
	}
	bound := int(time.Since(begun)/(20*time.Millisecond)) + 2
	n := 0
	for {
		wait, stop := context.WithTimeout(ctx, 500*time.Millisecond)
		_, err := conn.WaitForNotification(wait)
		stop()
		if err != nil {
			break
		}
		n++
	}
	if n == 0 || n > bound {
		t.Errorf("%d notifications, want at most %d", n, bound)
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
