package relay

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Notifier notifies relays of appends: this process directly, other instances by NOTIFY. A notification
// is a hint; an instance that misses one finds the events by polling. Use NewNotifier.
type Notifier struct {
	pool   *pgxpool.Pool
	logger *slog.Logger
	wake   chan struct{}
	follow chan struct{}
	notify chan struct{}
}

// NewNotifier returns a notifier. Only while Run runs are notifications exchanged with other processes.
func NewNotifier(pool *pgxpool.Pool, logger *slog.Logger) *Notifier {
	return &Notifier{pool: pool, logger: logger, wake: make(chan struct{}, 1), follow: make(chan struct{}, 1), notify: make(chan struct{}, 1)}
}

// Appended is the log's hook after each commit. It never blocks.
func (n *Notifier) Appended([]int16) {
	hint(n.wake)
	hint(n.notify)
}

// Followed is Appended for consumers: their events follow from published ones.
func (n *Notifier) Followed([]int16) {
	hint(n.follow)
	hint(n.notify)
}

// FollowUps is the channel for Relay.Followed.
func (n *Notifier) FollowUps() <-chan struct{} { return n.follow }

// Wake is the channel for Relay.Wake.
func (n *Notifier) Wake() <-chan struct{} { return n.wake }

// notifyEvery coalesces notifications. Polling finds the events soon after anyway.
const notifyEvery = 20 * time.Millisecond

// notifySQL notifies in its own transaction: inside the append a notification would make commits wait for
// each other. It is a hint and need not be durable.
const notifySQL = `SELECT set_config('synchronous_commit', 'off', true), pg_notify('meterplex_appended', '')`

// Run sends and receives notifications until ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	received := make(chan struct{})
	go func() {
		defer close(received)
		n.receive(ctx)
	}()
	defer func() { <-received }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.notify:
		}
		// After a failure the other instances find the events by polling.
		if _, err := n.pool.Exec(ctx, notifySQL); err != nil {
			n.logger.DebugContext(ctx, "cannot notify of an append", "error", err)
		}
		if !sleep(ctx, notifyEvery) {
			return nil
		}
	}
}

func (n *Notifier) receive(ctx context.Context) {
	for try := 1; ctx.Err() == nil; try++ {
		if err := n.listen(ctx, func() { try = 0 }); err != nil && ctx.Err() == nil {
			n.logger.DebugContext(ctx, "cannot receive notifications", "error", err)
			sleep(ctx, pauseAfter(try, rand.N[time.Duration]))
		}
	}
}

// listen uses a connection outside the pool, since it waits without limit.
func (n *Notifier) listen(ctx context.Context, ok func()) error {
	conn, err := pgx.ConnectConfig(ctx, n.pool.Config().ConnConfig.Copy())
	if err != nil {
		return fmt.Errorf("connecting to listen: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, `LISTEN meterplex_appended`); err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	ok()
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("waiting for a notification: %w", err)
		}
		hint(n.wake)
	}
}
