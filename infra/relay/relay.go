// Package relay is the outbox relay: it publishes the event log to the pipe, and stores the position of the
// last published event in each partition. A Watermill router connects its two ends: a subscriber that reads batches from
// the log, and a handler that publishes them. The Ack of a batch moves the cursors.
//
// The relay publishes at least once and in log order. It never interprets or changes an event. If the
// broker will never store a record, an empty withheld record takes its place on the topic; the log keeps the
// event, and a dead letter is appended.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// Relay publishes the partitions that it can lease. Any number of instances share the log. A limit of
// zero selects its default.
type Relay struct {
	Pool      Pool
	Log       Log
	Recent    Recent // may be nil
	Appender  Appender
	Publisher message.Publisher
	Instance  string           // unique per process
	NewID     func() uuid.UUID // UUIDv7
	Now       func() time.Time
	Wake      <-chan struct{} // hint: events were appended; may be nil
	// Followed is the hint that a consumer of this process appended follow-ups of a published batch. The
	// relay reads them at once, since batches already bound the rate. After Wake it waits briefly, so
	// that single events share a batch. May be nil.
	Followed <-chan struct{}
	// Later is the hint that events were appended which consumers of this process hold already. May be nil.
	Later <-chan struct{}
	// Hinted reports that the hints of all instances arrive. While the backlog is empty, the heads
	// are polled less often then. May be nil.
	Hinted func() bool
	// Ticks are the moments of polls without a hint, and of renewals of the leases.
	Ticks   loop.Ticks
	Logger  *slog.Logger
	Router  []watermill.Option
	Observe Observe
	Jitter  func(time.Duration) time.Duration // the random half of a pause; nil: rand.N

	LeaseTTL    time.Duration // delay before the partitions of a dead instance are leased again (5 s)
	MaxEvents   int           // per batch (2000)
	MaxBytes    int           // of the records of one batch (4 MiB)
	MaxInFlight int           // concurrent batches, of different partitions (3)
	// CloseGrace bounds the wait for acknowledgements at a clean stop (5 s). Batches that are not
	// acknowledged by then are published again by the next lease holder.
	CloseGrace time.Duration

	inTurn bool // publish the topics of a batch one after the other
}

// Defaults and limits.
const (
	defaultLeaseTTL    = 5 * time.Second
	defaultMaxEvents   = 2000
	defaultMaxBytes    = 4 << 20
	defaultMaxInFlight = 3
	defaultCloseGrace  = 5 * time.Second

	// HandlerName is the name of the relay's handler in logs and metrics.
	HandlerName = "relay"
	// topic is the only topic of the relay's subscriber.
	topic = "outbox"
)

// pauses follow failures. The longest one also bounds the idle time after the pipe has recovered.
var pauses = domain.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}

// Run relays until ctx ends, then finishes the batches under way and releases its leases.
//
// A batch flows like this: leases.go leases partitions, dispatch (subscriber.go) chooses those with
// unread events, carry.go reads their events, publishes the records and settles the result, and cursor.go
// moves the cursors.
func (r *Relay) Run(ctx context.Context) error {
	cfg := r.withDefaults()
	sub := newSubscriber(cfg)
	router, err := watermill.NewRouter(cfg.Logger, cfg.Observe.Handled, cfg.Router...)
	if err != nil {
		return fmt.Errorf("building the relay's router: %w", err)
	}
	router.AddConsumerHandler(HandlerName, topic, sub, cfg.publish)

	// The leases outlive ctx, so that the batches under way are published under a lease.
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
	c.LeaseTTL = cmp.Or(c.LeaseTTL, defaultLeaseTTL)
	c.MaxEvents = cmp.Or(c.MaxEvents, defaultMaxEvents)
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultMaxBytes)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, defaultMaxInFlight)
	c.CloseGrace = cmp.Or(c.CloseGrace, defaultCloseGrace)
	c.Observe = c.Observe.withDefaults()
	if c.Jitter == nil {
		c.Jitter = rand.N[time.Duration]
	}
	return &c
}

// Pool is the part of a connection pool that a relay uses.
type Pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Log reads events.
type Log interface {
	// Read returns the events of a partition in (after, upTo], in order and without gaps, at most limit.
	Read(ctx context.Context, partition int16, after, upTo int64, limit int) ([]events.Envelope, error)
	// ReadStretches is Read for several partitions, at most limit events of each.
	ReadStretches(ctx context.Context, stretches []events.Stretch, limit int) ([]events.Envelope, error)
}

// Recent is the part of the cache of committed events that the relay reads: these it does not read from the database.
type Recent interface {
	// Follow holds the events of a partition after a head that was read under a lease, if the fence of the lease is
	// not 0.
	Follow(partition int16, fence int64, epoch int32, head int64)
	// Take returns the events of (after, upTo], up to the first that is missing, and up to about room
	// bytes of payloads; no event twice.
	Take(partition int16, fence, after, upTo int64, room int) []*events.Envelope
}

// Appender appends to the log in a transaction that already holds the checkpoints, here the relay's
// cursor.
type Appender interface {
	AppendTx(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Position, error)
}
