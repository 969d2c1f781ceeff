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

// Notifier spreads the word that something was appended: in this process at
// once, to the other instances by NOTIFY. The word is a hint; who misses it finds
// the events by polling. Make one with NewNotifier.
type Notifier struct {
	pool   *pgxpool.Pool
	logger *slog.Logger
	wake   chan struct{}
	follow chan struct{}
	tell   chan struct{}
}

// NewNotifier makes a notifier; Run makes it heard across processes.
func NewNotifier(pool *pgxpool.Pool, logger *slog.Logger) *Notifier {
	return &Notifier{pool: pool, logger: logger, wake: make(chan struct{}, 1), follow: make(chan struct{}, 1), tell: make(chan struct{}, 1)}
}

// Appended is the hook of the log, after each commit. It never blocks.
func (n *Notifier) Appended([]int16) {
	hint(n.wake)
	hint(n.tell)
}

// Followed is Appended for consumers: what they append follows from what came by
// the relay.
func (n *Notifier) Followed([]int16) {
	hint(n.follow)
	hint(n.tell)
}

// FollowUps is what Relay.Followed takes.
func (n *Notifier) FollowUps() <-chan struct{} { return n.follow }

// Wake is what Relay.Wake takes.
func (n *Notifier) Wake() <-chan struct{} { return n.wake }

// notifyEvery coalesces notifications: a poll finds the events soon after anyway.
const notifyEvery = 20 * time.Millisecond

// A notification is a transaction of its own: inside the append it would make
// commits wait for each other. It is a hint, and need not be durable.
const notifySQL = `SELECT set_config('synchronous_commit', 'off', true), pg_notify('meterplex_appended', '')`

// Run sends and hears notifications until ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		n.hear(ctx)
	}()
	defer func() { <-heard }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.tell:
		}
		// A failure costs the others a poll, no more.
		if _, err := n.pool.Exec(ctx, notifySQL); err != nil {
			n.logger.DebugContext(ctx, "an append was not notified", "error", err)
		}
		if !sleep(ctx, notifyEvery) {
			return nil
		}
	}
}

func (n *Notifier) hear(ctx context.Context) {
	for try := 1; ctx.Err() == nil; try++ {
		if err := n.listen(ctx, func() { try = 0 }); err != nil && ctx.Err() == nil {
			n.logger.DebugContext(ctx, "notifications are not heard", "error", err)
			sleep(ctx, pauseAfter(try, rand.N[time.Duration]))
		}
	}
}

// listen has a connection of its own, which is taken out of the pool: it waits
// for ever.
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
