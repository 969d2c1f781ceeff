// Package projections defines the types that all read models share: projection, generation,
// scope, consumer, fold version. A fold is pure and versioned; live consumers and rebuilds run the
// same one. Records arrive as events.Record from any pipe; only [Log] writes the log.
//
// Packages below: models (the list), consume, rebuild, query, and one for each read model.
package projections

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// Handler applies a batch of a consumer's source. Apply runs in the transaction
// that moves the checkpoint, and may run again with a part of the batch after a
// rollback: it holds no state. The batch is in the order of (partition, position),
// without duplicates; a batch of a topic has no withheld events.
//
// Folding each event is pure; call it through [Try], so that an event that fails
// or panics goes to Result.Failed and the others are folded. An error of Apply
// fails the whole batch: after a data error (SQLSTATE classes 22, 23, 54, P0) or a
// panic the batch is bisected down to the faulty event; any other error counts as
// an outage and the batch is retried.
//
// If the projection has several generations, Apply runs once for each, with the
// generation to fold into and its fold version.
type Handler interface {
	Apply(ctx context.Context, tx pgx.Tx, g Generation, batch []events.Envelope) (Result, error)
}

// Pure is a Handler that writes no table: its results are follow-ups alone. Such a consumer can also fold events in
// the transaction that appends them, with the heads of the stretches locked.
type Pure interface {
	Handler
	FollowUps(ctx context.Context, query Query, stretches []events.InlineStretch, batch []events.Envelope) (Result, error)
}

// Query runs a query in a transaction.
type Query = func(ctx context.Context, sql string, args ...any) (pgx.Rows, error)

// Result holds the follow-ups and the failures of a batch.
type Result struct {
	FollowUps []events.Pending
	Failed    []Failure
}

// Failure is an event that a fold failed on.
type Failure struct {
	Event  events.Envelope
	Code   string
	Reason string
}

// Log is the event log as consumers use it.
type Log interface {
	// ID identifies the log in the headers of its records: those of other logs do not concern this one.
	ID() uuid.UUID
	// AppendTx appends events and returns their positions. It locks the heads in
	// ascending order. A duplicate (same tenant and dedupe key) is skipped and not
	// counted; its position is that of the first occurrence.
	AppendTx(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Position, error)
	// AppendEventsTx is AppendTx, and returns the events that it appended, without duplicates,
	// as they are read from the log.
	AppendEventsTx(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Envelope, error)
	// ReadTx reads the events of a partition in (after, upTo], of one topic or of
	// all (0), in the order of their positions, at most limit of them.
	ReadTx(ctx context.Context, tx pgx.Tx, partition int16, after, upTo int64, topic events.Topic, limit int) ([]events.Envelope, error)
	// ReadStretchesTx reads stretches of several partitions, filtered by subjects
	// (empty: all): in order within each stretch, at most limit of each.
	ReadStretchesTx(ctx context.Context, tx pgx.Tx, stretches []events.Stretch, of []events.Subject, limit int) ([]events.Envelope, error)
	// ReadTopicTx reads events of a topic in stretches of several partitions, of which each ends at the last event of the topic: the first
	// ones, in order within each stretch, at most limit of each. It returns no event of a stretch if its last event is missing.
	ReadTopicTx(ctx context.Context, tx pgx.Tx, stretches []events.Stretch, topic events.Topic, limit int) ([]events.Envelope, error)
}

// Consumer names a fold, its source and its bounds.
type Consumer struct {
	Name    string
	Role    string       // of METERPLEX_ROLES: instances with it run the consumer
	Topic   events.Topic // 0: reads the log itself
	Handler Handler
	// Subjects are those that a consumer of the log folds; empty: all. Events of
	// other subjects are passed unread.
	Subjects []events.Subject
	// Every is the interval at which a consumer of the log reads it, in batches of all events since; 0: as soon as
	// there are events. A batch costs about the same for one event as for a hundred.
	Every time.Duration
	// Paced says that the consumer yields to ingest while it has a long backlog: its readers can wait for the end.
	Paced bool
	// Hot says that every event passes the consumer: its sessions keep their plans.
	Hot bool
	// Projection names the projection whose generations the handler writes; "": no
	// rows. Versions are the fold versions that it supports, the newest last.
	Projection string
	Versions   []string
	// Parks says that the consumer leads to the aggregates: a failed event is
	// parked, counted as parked, and may be retried. Failures of other read models
	// are recorded as DISCARDED, since a rebuild fixes them and a retry would count
	// twice.
	Parks bool
	// MaxPerPartition bounds the records of one partition in one transaction:
	// appending follow-ups locks the partition's head.
	MaxPerPartition int
	// MaxRecords bounds the records of one transaction; 0 is MaxPerPartition × 32.
	MaxRecords int
}

// Bound is the number of records of one transaction.
func (c *Consumer) Bound() int { return cmp.Or(c.MaxRecords, c.MaxPerPartition*events.Partitions) }

// Misses reports whether an event never reached the consumer: it was withheld from
// the topic before the consumer folded it. A consumer of the log itself also reads
// the events that the pipe could not carry.
func (c *Consumer) Misses(e *events.Envelope) bool {
	return c.Topic != 0 && e.Withheld && !e.WithheldLate
}

// Observer receives the outcome of each transaction, after its end. A rolled back
// transaction reports only its error: its records are delivered again.
type Observer interface {
	Observe(consumer *Consumer, b Batch)
}

// Batch is the outcome of one transaction of a consumer.
type Batch struct {
	Applied    []events.Envelope // folded (result ok); do not retain
	Failed     []Failure         // of those applied: not folded but dead-lettered (result error)
	FollowUps  int               // appended events, including dead letters
	Passed     int               // withheld or republished for outside readers (result noop)
	Duplicates int               // records that the pipe delivered again (result noop; inbox_dedup_skips)
	OtherLog   int               // records of another database that shares the broker
	Foreign    int               // records that name no position of a log
	FromLog    int               // of those applied or passed: read from the database, not from the memory of this process
	Took       time.Duration
	End        time.Time // when the commit returned
	Err        error     // set if the transaction was rolled back or its outcome is unknown
}

// Bounds of one transaction, for Consumer.MaxPerPartition.
const (
	MaxWithFollowUps    = 200  // each event leads to another: appending them locks the heads
	MaxWithoutFollowUps = 2000 // longer statements are no faster
)

// MaxRead bounds the events of all partitions that a transaction on the log holds in memory.
const MaxRead = 8000
