package relay

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/meterplex/meterplex/domain/loop"
)

// Notifier notifies the readers of the log of appends: those of this process directly, other instances by
// NOTIFY. A notification is a hint; a reader that misses one finds the events by polling. Use NewNotifier.
type Notifier struct {
	pool    *pgxpool.Pool
	logger  *slog.Logger
	sender  string // this process, whose readers need no notification
	wake    loop.Hint
	follow  loop.Hint
	later   loop.Hint
	notify  loop.Hint
	hearing atomic.Bool

	mu      sync.Mutex
	readers []loop.Hint // but the relay
}

// NewNotifier returns a notifier. Only while Run runs are notifications exchanged with other processes.
func NewNotifier(pool *pgxpool.Pool, logger *slog.Logger) *Notifier {
	return &Notifier{
		pool: pool, logger: logger, sender: uuid.NewString(),
		wake: loop.NewHint(), follow: loop.NewHint(), later: loop.NewHint(), notify: loop.NewHint(),
	}
}

// Appended is the log's hook after each commit. It never blocks.
func (n *Notifier) Appended([]int16) { n.announce(n.wake) }

// Followed is Appended for consumers: their events follow from published ones.
func (n *Notifier) Followed([]int16) { n.announce(n.follow) }

// InMemory is Appended for events that consumers of this process hold already: the relay of this process
// need not hurry.
func (n *Notifier) InMemory([]int16) { n.announce(n.later) }

// announce hints the relay, by one of its channels, and all other readers.
func (n *Notifier) announce(relay loop.Hint) {
	n.hintHere(relay)
	n.notify.Notify()
}

// hintHere hints the readers of this process.
func (n *Notifier) hintHere(relay loop.Hint) {
	relay.Notify()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.readers {
		c.Notify()
	}
}

// Later is the channel for Relay.Later.
func (n *Notifier) Later() <-chan struct{} { return n.later }

// FollowUps is the channel for Relay.Followed.
func (n *Notifier) FollowUps() <-chan struct{} { return n.follow }

// Wake is the channel for Relay.Wake.
func (n *Notifier) Wake() <-chan struct{} { return n.wake }

// Reader returns a channel for one more reader of the log.
func (n *Notifier) Reader() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := loop.NewHint()
	n.readers = append(n.readers, c)
	return c
}

// Hearing reports that notifications of other processes arrive, so that readers may poll less often. A
// notification of this process proves it: it comes back from the server. Through a pooler that shares
// sessions it does not.
func (n *Notifier) Hearing() bool { return n.hearing.Load() }

// notifyEvery coalesces notifications.
const notifyEvery = 20 * time.Millisecond

// notifySQL notifies in its own transaction: inside the append a notification would make commits wait for
// each other. It is a hint and need not be durable.
const notifySQL = `SELECT set_config('synchronous_commit', 'off', true), pg_notify('meterplex_appended', $1)`

// Run sends and receives notifications until ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	received := make(chan struct{})
	go func() {
		defer close(received)
		n.receive(ctx)
	}()
	defer func() { <-received }()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-n.notify:
		}
		pause := notifyEvery
		if _, err := n.pool.Exec(ctx, notifySQL, n.sender); err != nil {
			n.logger.DebugContext(ctx, "cannot notify of an append; will retry", "error", err)
			failures++
			pause = pauses.Jittered(failures, rand.N[time.Duration])
			n.notify.Notify()
		} else {
			failures = 0
		}
		if !loop.Sleep(ctx, pause) {
			return nil
		}
	}
}

func (n *Notifier) receive(ctx context.Context) {
	for try := 1; ctx.Err() == nil; try++ {
		if err := n.listen(ctx, func() { try = 0 }); err != nil && ctx.Err() == nil {
			n.logger.DebugContext(ctx, "cannot receive notifications", "error", err)
			loop.Sleep(ctx, pauses.Jittered(try, rand.N[time.Duration]))
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
	defer n.hearing.Store(false)
	n.notify.Notify() // its return proves that notifications arrive
	for {
		got, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("waiting for a notification: %w", err)
		}
		n.hearing.Store(true)
		if got.Payload != n.sender {
			n.hintHere(n.wake)
		}
	}
}
