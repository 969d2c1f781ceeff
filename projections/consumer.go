// Package projections has the words of all read models: projection, generation, scope,
// consumer, fold version. A fold is pure and versioned; live consumers and rebuilds run the
// same one. Records arrive as events.Record, from whatever pipe; the log is written through
// [Log] only.
//
// Packages below: models (the list), consume, rebuild, query, and one for each read model.
package projections

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// Handler is what a consumer does with a batch of its source. Apply runs in the
// transaction that moves the checkpoint, and may run again with a part of the
// batch after a rollback: it keeps nothing of its own. The batch is in the order
// of (partition, position), holds no event twice, and of a topic none that is withheld.
//
// Folding each event is pure; call it through [Try], so that one that fails or
// panics goes to Result.Failed while its neighbours go on. An error of Apply is a
// fault of the whole batch: one of data (SQLSTATE classes 22, 23, 54, P0) or a
// panic is bisected down to the event that causes it, any other is taken for an
// outage and the batch comes again.
//
// A consumer whose projection has several generations is given a batch once for
// each, with what it must fold it by and into.
type Handler interface {
	Apply(ctx context.Context, tx pgx.Tx, g Generation, batch []events.Envelope) (Result, error)
}

// Result is what a batch leads to besides the handler's own tables.
type Result struct {
	FollowUps []events.Pending
	Failed    []Failure
}

// Failure is an event that a fold could not take.
type Failure struct {
	Event  events.Envelope
	Code   string
	Reason string
}

// Log is the event log as consumers need it.
type Log interface {
	// ID is the log's name in the headers of its records: those of other logs are dropped.
	ID() uuid.UUID
	// AppendTx gives the events their places in the log. It locks the heads in
	// ascending order. An event whose tenant and dedupe key are there already is
	// skipped, counts nothing, and the place of the first is returned for it.
	AppendTx(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Position, error)
	// ReadTx reads the events of a partition in (after, upTo], of one topic or of
	// all (0), in the order of their positions, at most limit of them.
	ReadTx(ctx context.Context, tx pgx.Tx, partition int16, after, upTo int64, topic events.Topic, limit int) ([]events.Envelope, error)
	// ReadStretchesTx reads stretches of several partitions, of some subjects or,
	// where none is named, of all: those of each in order, at most limit of each.
	ReadStretchesTx(ctx context.Context, tx pgx.Tx, stretches []events.Stretch, of []events.Subject, limit int) ([]events.Envelope, error)
}

// Consumer names a fold, its source and its bounds.
type Consumer struct {
	Name    string
	Role    string       // of METERPLEX_ROLES: the instances that run it
	Topic   events.Topic // 0: reads the log itself
	Handler Handler
	// Subjects are what the handler makes anything of, where it reads the log; none:
	// all. The rest is passed unread.
	Subjects []events.Subject
	// Hot says that every event passes the consumer: it wants sessions that keep
	// their plans.
	Hot bool
	// Projection is what the handler keeps rows of, in generations; "": nothing.
	// Versions are the fold versions that it can feed them by, the newest last.
	Projection string
	Versions   []string
	// Parks says that the consumer is on the way to the aggregates: an event that
	// fails is parked, counted so, and may be retried. Failures of a read model
	// beside that way are recorded as DISCARDED, since a rebuild mends them and a
	// retry would count twice.
	Parks bool
	// MaxPerPartition bounds the records of one partition in one transaction:
	// follow-ups hold the partition's head.
	MaxPerPartition int
	// MaxRecords bounds the records of one transaction; 0 is MaxPerPartition × 32.
	MaxRecords int
}

// Misses tells whether an event never came to the consumer: it is withheld from its
// topic, and was so before the consumer had it. Who reads the log itself misses
// nothing that only the pipe could not carry.
func (c *Consumer) Misses(e *events.Envelope) bool { return c.Topic != 0 && e.Withheld && !e.Late }

// Observer is told what became of each transaction, after its end. Of one that
// was rolled back only the error is told: its records come again.
type Observer interface {
	Observe(consumer *Consumer, b Batch)
}

// Batch is what one transaction of a consumer did.
type Batch struct {
	Applied    []events.Envelope // folded (result ok); not to be kept
	Failed     []Failure         // of those applied: not folded but dead-lettered (result error)
	FollowUps  int               // events appended, dead letters included
	Passed     int               // withheld or republished for outside readers (result noop)
	Duplicates int               // at or below the checkpoint (result noop; inbox_dedup_skips)
	Ghosts     int               // of a future that the database lost: their epoch does not own the position, or another event is there
	OtherLog   int               // of another database that shares the broker
	Foreign    int               // in no log of ours, or without a place
	FromLog    int               // of those applied or passed: read from the log, not from the pipe
	Took       time.Duration
	End        time.Time // when the commit was answered
	Err        error     // set where the transaction was rolled back or its end is not known
}

// Bounds of one transaction, for Consumer.MaxPerPartition.
const (
	MaxWithFollowUps    = 200  // each event leads to another: the heads are held while they are appended
	MaxWithoutFollowUps = 2000 // a longer statement gains nothing more
)

// MaxRead bounds what a transaction that reads the log holds in memory, over all partitions.
const MaxRead = 8000
