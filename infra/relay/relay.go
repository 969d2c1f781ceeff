// Package relay is the outbox's relay: it carries the event log, read through a
// durable cursor for each partition, to the pipe. It is a Watermill router whose
// subscriber is the log: a message is one batch, its Ack moves the cursors.
//
// It publishes at least once and in the order of the log; it never decides what
// an event means, never changes one, and never drops one: what alone cannot be
// published keeps its place as a withheld record and becomes a dead letter.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// Log is where the events are read.
type Log interface {
	// Read gives the events of a partition after a number, up to and with another,
	// in order and without holes, at most limit.
	Read(ctx context.Context, partition int16, after, upTo int64, limit int) ([]events.Envelope, error)
	// ReadStretches is Read for several partitions at once, at most limit of each.
	ReadStretches(ctx context.Context, stretches []events.Stretch, limit int) ([]events.Envelope, error)
}

// Appender appends to the log inside a transaction that holds its checkpoints
// (here: the cursor) already.
type Appender interface {
	AppendTx(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Position, error)
}

// Pool is what a relay needs of a pool of connections.
type Pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Relay carries the partitions that it can lease. Any number of instances share
// the log; the zero values of the limits stand for the defaults.
type Relay struct {
	Pool      Pool
	Log       Log
	Appender  Appender
	Publisher Publisher
	Instance  string           // unique for each process
	NewID     func() uuid.UUID // UUIDv7
	Now       func() time.Time
	Wake      <-chan struct{} // a hint that something was appended; may be nil
	// Followed is a hint that a consumer of this process appended what follows from
	// a batch of ours. It is taken at once: batches make a pace by themselves, while
	// single events, of which Wake tells, wait for others to come along. May be nil.
	Followed <-chan struct{}
	Logger   *slog.Logger
	Router   []watermill.Option
	Observe  Observe
	Jitter   func(time.Duration) time.Duration // part of a pause, at random; nil: rand.N

	LeaseTTL    time.Duration // how long a dead instance's partitions wait (5 s)
	MaxEvents   int           // in one batch (2000)
	MaxBytes    int           // of one batch's records (4 MiB)
	MaxInFlight int           // batches of different partitions at once (3)
	// CloseGrace is what batches under way get to be acknowledged at a clean stop
	// (5 s). What is not by then is sent again by whoever takes the partitions over.
	CloseGrace time.Duration
}

// Defaults and limits.
const (
	defaultLeaseTTL    = 5 * time.Second
	defaultMaxEvents   = 2000
	defaultMaxBytes    = 4 << 20
	defaultMaxInFlight = 3
	defaultCloseGrace  = 5 * time.Second

	// topic is the one name under which the log can be subscribed to.
	topic = "outbox"
)

// Run relays until ctx ends, then finishes the batches under way and hands its
// partitions back at once.
func (r *Relay) Run(ctx context.Context) error {
	cfg := r.withDefaults()
	sub := newSubscriber(cfg)
	router, err := watermill.NewRouter(cfg.Logger, cfg.Observe.Handled, cfg.Router...)
	if err != nil {
		return fmt.Errorf("building the relay's router: %w", err)
	}
	router.AddConsumerHandler("relay", topic, sub, cfg.publish)

	// The leases outlive ctx: what is under way is still published under them.
	leasing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wait sync.WaitGroup
	wait.Go(func() { sub.leases.run(leasing) })
	err = router.Run(ctx)
	err = errors.Join(err, sub.Close())
	stop()
	wait.Wait()
	return errors.Join(err, sub.leases.releaseAll(context.WithoutCancel(ctx)))
}

func (r *Relay) withDefaults() *Relay {
	c := *r
	c.LeaseTTL = orDefault(c.LeaseTTL, defaultLeaseTTL)
	c.MaxEvents = orDefault(c.MaxEvents, defaultMaxEvents)
	c.MaxBytes = orDefault(c.MaxBytes, defaultMaxBytes)
	c.MaxInFlight = orDefault(c.MaxInFlight, defaultMaxInFlight)
	c.CloseGrace = orDefault(c.CloseGrace, defaultCloseGrace)
	c.Observe = c.Observe.withDefaults()
	if c.Jitter == nil {
		c.Jitter = rand.N[time.Duration]
	}
	return &c
}

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}
