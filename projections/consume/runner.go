// Package consume runs consumers. A message says one thing: a partition has events up to a position. One transaction locks the checkpoint,
// reads the log from there, folds, appends follow-ups and moves the checkpoint. So each event counts once, whatever the messages
// are. The package knows no projection by name.
//
// Read runner.go first, then stretches.go (reads), apply.go (folds) and checkpoint.go. failures.go makes dead letters.
// messages.go and source.go find the positions to read up to: from records, from memory, and by polls.
package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Pool is the part of a connection pool that a runner uses.
type Pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Cache holds recent events for the relay and the consumers of this process. Put returns of how many a consumer of their topic is notified.
type Cache interface {
	Put(list []*events.Envelope) (notified int)
}

// Recent is the part of the cache that a consumer reads. The cache may miss any event.
type Recent interface {
	// Stretch appends the events of the consumer in a stretch to a list, at most limit, and reports whether all of
	// the stretch up to that limit is held; if not, the list stays as it is. The epoch is that of the partition's head, which the
	// stretch does not pass, in the server's present life.
	Stretch(list []events.Envelope, s events.Stretch, epoch int32, limit int) (_ []events.Envelope, ok bool)
	// Ready hints that Ahead returns positions, up to which events of the consumer's topic are held.
	Ready() <-chan struct{}
	Ahead() []events.Position
	// Reached notes the checkpoint in a partition whose head has an epoch, and follows the partition from then on: of others Ahead returns
	// no position. Leave ends that.
	Reached(to events.Position, epoch int32)
	Leave(partition int16)
	// Follows returns those of some partitions that are followed.
	Follows(partitions []int16) []int16
	// Passed reports whether the checkpoint is known to have passed a record's position.
	Passed(at events.RecordPosition) bool
}

// Runner runs a consumer exactly once in effect: whatever it is told, and however often, it reads the log from its checkpoint, whose lock
// serializes all instances. Its methods may run concurrently.
type Runner struct {
	Pool     Pool
	Log      projections.Log
	Consumer projections.Consumer
	NewID    func() uuid.UUID
	Logger   *slog.Logger
	Observe  projections.Observer // may be nil
	// Appended is called after each commit with follow-ups, with the partitions that may
	// hold them, and whether other consumers of this process are notified of all of them. It must not
	// block. May be nil.
	Appended func(partitions []int16, notified bool)
	Moves    *projections.Moves // notified of each commit; may be nil
	Cache    Cache              // of recent events, for committed follow-ups; may be nil
	Recent   Recent             // the cache as this consumer reads it; may be nil
	// Trace, if set, begins the span of a transaction that applies events, and returns the function that ends it.
	Trace func(ctx context.Context, c *projections.Consumer, began time.Time, applied []events.Envelope) (context.Context, func(error))

	StillAfter time.Duration // of the poll for a consumer of a topic, 0: DefaultStillAfter
	Lags       *Lags         // of this process' consumers, for that poll; nil: it reads those of its own consumer
	// Share is the percentage of the time that a Paced consumer works on a long backlog; 0: all of it.
	Share int64

	// turn lets messages of several sources be processed in turn: each transaction locks the same checkpoints.
	turn sync.Mutex

	lostLoggedAt atomic.Int64 // Unix seconds
	othersLogged atomic.Int64 // Unix seconds
	epochs       epochs
	generations  generations
	assignments  assignments
	polls        polls
	pace         pace
	spare        atomic.Pointer[[]events.Envelope] // without events
}

// partitionRun is the work on one partition: to read its log up to a position.
type partitionRun struct {
	partition int16
	upTo      int64
	done      bool // it is read, or was before

	checkpoint checkpoint
	last       int64 // the position reached
}

func (l *partitionRun) moves() bool { return l.last != l.checkpoint.position }

// ReadUpTo folds the events of the log up to the given positions, at most one for each partition, and returns the number of
// events. Nil means that all of them are committed.
func (r *Runner) ReadUpTo(ctx context.Context, positions []events.Position) (n int, err error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	return r.read(ctx, positions)
}

func (r *Runner) read(ctx context.Context, positions []events.Position) (n int, err error) {
	runs := make([]*partitionRun, 0, len(positions))
	for _, p := range positions {
		runs = append(runs, &partitionRun{partition: p.Partition, upTo: p.Number})
	}
	slices.SortFunc(runs, func(a, b *partitionRun) int { return int(a.partition - b.partition) })
	return r.run(ctx, runs)
}

// movedTries is how often a transaction is retried at once because generations joined
// or left meanwhile: enough for one retry per generation.
const movedTries = 3

// run processes the runs, one transaction after the other, and returns the number of events.
func (r *Runner) run(ctx context.Context, runs []*partitionRun) (n int, err error) {
	for len(runs) > 0 {
		began := time.Now()
		done, err := r.transact(ctx, runs, false)
		for again := 0; errors.Is(err, errMoved) && again < movedTries; again++ {
			done, err = r.transact(ctx, runs, false) // a generation has joined, or left
		}
		if ofData(err) {
			done, err = r.transact(ctx, runs, true)
		}
		r.observeEnd(done, began, err)
		n += len(done.Applied)
		r.reuse(done.Applied)
		if err != nil {
			return n, fmt.Errorf("consume as %s: %w", r.Consumer.Name, err)
		}
		if runs = remaining(runs); len(runs) > 0 && r.Consumer.Paced {
			r.pace.rest(ctx, time.Since(began), r.Share)
		}
	}
	return n, nil
}

// observeEnd reports a transaction that began at a time and has ended.
func (r *Runner) observeEnd(b projections.Batch, began time.Time, err error) {
	b.Err, b.End = err, time.Now()
	b.Took = b.End.Sub(began)
	r.observe(b)
}

// maxReused bounds the memory of a list of events that is kept for the next transaction.
const maxReused = 1024

// reuse keeps the memory of a transaction's events, which ends with it, for the next one.
func (r *Runner) reuse(applied []events.Envelope) {
	if n := cap(applied); n > 0 && n <= maxReused {
		clear(applied)
		applied = applied[:0]
		r.spare.Store(&applied)
	}
}

// reused returns an empty list, with the memory of an earlier one if there is some.
func (r *Runner) reused() []events.Envelope {
	if list := r.spare.Swap(nil); list != nil {
		return *list
	}
	return nil
}

func (r *Runner) observe(b projections.Batch) {
	if r.Observe != nil {
		r.Observe.Observe(&r.Consumer, b)
	}
}

func remaining(runs []*partitionRun) []*partitionRun {
	return slices.DeleteFunc(runs, func(l *partitionRun) bool { return l.done })
}

// transact runs one transaction: it locks checkpoints, folds as much of each run as fits,
// appends follow-ups and moves the checkpoints. If careful, it isolates events that fail; if not, it fails with them and needs no
// savepoints.
func (r *Runner) transact(ctx context.Context, runs []*partitionRun, careful bool) (_ projections.Batch, err error) {
	began := time.Now()
	tx, err := r.Pool.Begin(ctx)
	if err != nil {
		return projections.Batch{}, fmt.Errorf("begin: %w", err)
	}
	defer rollback(ctx, tx)
	if err := r.prepare(ctx, tx, runs); err != nil {
		return projections.Batch{}, err
	}
	var done projections.Batch
	chain, err := r.stretches(ctx, tx, runs, &done)
	if err != nil {
		return projections.Batch{}, err
	}
	if !slices.ContainsFunc(runs, (*partitionRun).moves) {
		return done, nil // all of it was read before
	}
	done.Applied = slices.DeleteFunc(chain, func(e events.Envelope) bool { return r.Consumer.Misses(&e) })
	done.Passed += len(chain) - len(done.Applied)
	if r.Trace != nil && len(done.Applied) > 0 {
		var end func(error)
		ctx, end = r.Trace(ctx, &r.Consumer, began, done.Applied)
		defer func() { end(err) }()
	}
	all, err := r.fold(ctx, tx, done.Applied, runs, careful)
	if err != nil {
		return projections.Batch{}, err
	}
	done.Failed, done.FollowUps = all.failed, all.followUps
	if err := r.move(ctx, tx, runs); err != nil {
		return projections.Batch{}, err
	}
	if err := commit(ctx, tx); err != nil {
		return projections.Batch{}, err
	}
	r.committed(runs, done, all.appended)
	return done, nil
}

// committed reports the durable result, and offers the follow-ups to the consumers of this process.
func (r *Runner) committed(runs []*partitionRun, done projections.Batch, appended []events.Envelope) {
	r.report(done.Failed)
	var moved []events.Position
	var partitions []int16
	for _, l := range runs {
		if l.moves() {
			to := events.Position{Partition: l.partition, Number: l.last}
			moved, partitions = append(moved, to), append(partitions, l.partition)
			r.reached(l, l.last)
		}
	}
	r.Moves.Move(r.Consumer.Name, moved)
	notified, list := 0, separate(appended)
	if r.Cache != nil {
		notified = r.Cache.Put(list)
	}
	if done.FollowUps > 0 && r.Appended != nil {
		r.Appended(partitions, notified == max(done.FollowUps, len(list))) // more are appended if thresholds are crossed
	}
}

// reached notes a position that the consumer has reached.
func (r *Runner) reached(l *partitionRun, to int64) {
	r.assignments.begin(l.partition, to)
	if r.Recent != nil && l.checkpoint.living {
		r.Recent.Reached(events.Position{Partition: l.partition, Number: to}, l.checkpoint.epoch)
	}
}

// separate returns events of which each has memory of its own: one that is held for long does not keep the others.
func separate(list []events.Envelope) []*events.Envelope {
	all := make([]*events.Envelope, len(list))
	for i := range list {
		e := list[i]
		all[i] = &e
	}
	return all
}

// prepare locks the checkpoints and sets the runs to their positions.
func (r *Runner) prepare(ctx context.Context, tx pgx.Tx, runs []*partitionRun) error {
	partitions := make([]int16, len(runs))
	for i, l := range runs {
		partitions[i] = l.partition
	}
	checkpoints, err := r.lock(ctx, tx, partitions)
	if err != nil {
		return err
	}
	if err := r.epochs.refresh(ctx, tx, checkpoints); err != nil {
		return err
	}
	if err := r.generations.define(ctx, tx, &r.Consumer, checkpoints); err != nil {
		return err
	}
	for _, l := range runs {
		l.checkpoint = checkpoints[l.partition]
		l.last, l.done = l.checkpoint.position, false
		r.reached(l, l.last)
	}
	return nil
}
