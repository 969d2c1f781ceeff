// Package consume runs consumers. One transaction processes a batch: it locks checkpoints, drops duplicates
// and foreign records, reads gaps from the log, folds, appends follow-ups and moves the checkpoints. So each
// event counts once, however often it is delivered. The package knows no projection by name.
//
// Read runner.go first, then catchup.go (gaps), apply.go (folds) and checkpoint.go. failures.go and strays.go
// make dead letters. source.go finds the positions that a consumer of the log itself reads up to.
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
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// Pool is the part of a connection pool that a runner uses.
type Pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Newest holds committed events for the relay and the consumers of the log of this process.
type Newest interface{ Put(list []*events.Envelope) }

// Recent holds committed events of this process for a consumer of the log. It may miss any event.
type Recent interface {
	// Stretch appends the events of the consumer's subjects in a stretch to a list, at most limit, and reports whether all of
	// the stretch up to that limit is held; if not, the list stays as it is. The epoch is that of the partition's head, which the
	// stretch does not pass, in the server's present life.
	Stretch(list []events.Envelope, s events.Stretch, epoch int32, limit int) (_ []events.Envelope, ok bool)
}

// Runner runs a consumer exactly once in effect, even if its source delivers twice, out
// of order, late or never. Its methods may run concurrently, in any number of
// instances; the checkpoints' locks serialize them.
type Runner struct {
	Pool     Pool
	Log      projections.Log
	Consumer projections.Consumer
	NewID    func() uuid.UUID
	Logger   *slog.Logger
	Observe  projections.Observer // may be nil
	// Appended is called after each commit with follow-ups, with the partitions that may
	// hold them, and whether other consumers of this process hold all of them. It must not
	// block. May be nil.
	Appended func(partitions []int16, handed bool)
	Moves    *projections.Moves // notified of each commit; may be nil
	Handed   *Handover          // of events that this process appends; may be nil
	Next     Handovers          // to the consumers of follow-ups; may be nil
	Newest   Newest             // of the log, for committed follow-ups; may be nil
	Recent   Recent             // of the log, for a consumer that reads it; may be nil
	// Trace, if set, begins the span of a transaction that applies events, and returns the function that ends it.
	Trace func(ctx context.Context, c *projections.Consumer, began time.Time, applied []events.Envelope) (context.Context, func(error))

	TailAfter time.Duration // of LostTails, 0: DefaultTailAfter
	Lags      *Lags         // of this process' consumers, for LostTails; nil: it reads those of its own consumer
	// Share is the percentage of the time that a Paced consumer works on a long backlog; 0: all of it.
	Share int64

	// turn lets the events that were handed over and the records of the pipe be processed in turn. Each transaction
	// locks the same checkpoints, and a record whose event is folded meanwhile needs no transaction.
	turn sync.Mutex

	lostLoggedAt   atomic.Int64 // Unix seconds
	ghostsLoggedAt atomic.Int64 // Unix seconds
	epochs         epochs
	generations    generations
	tails          tailWatch
	pace           pace
	spare          atomic.Pointer[[]events.Envelope] // without events
}

// partitionRun holds one partition's unread records and its progress in this transaction.
type partitionRun struct {
	partition int16
	items     []item // by position

	checkpoint checkpoint
	last       int64 // the position reached
	taken      int   // number of items processed
}

func (l *partitionRun) moves() bool { return l.last != l.checkpoint.position }

// item is a position of the source to reach, with its event if the source delivered a
// readable one.
type item struct {
	place  events.Place
	event  *events.Envelope // nil: the place comes from the log itself
	offset int64
	unread bool  // the event must be read from the log
	proved bool  // the place was compared with the log
	ghost  bool  // the log has another event there, or no event
	fault  error // why the delivered record could not be read
	head   bool  // the place comes from the log itself: it needs no check
}

// Process folds a batch of records of the consumer's topic, which may span partitions,
// come in any order and hold anything. Nil means that all of it is committed and may be
// acknowledged; after an error it must be delivered again.
func (r *Runner) Process(ctx context.Context, records []events.Record) error {
	if r.Handed != nil {
		r.turn.Lock()
		defer r.turn.Unlock()
	}
	runs, strays, outside := r.receive(records)
	if err := r.parkStrays(ctx, strays); err != nil {
		return err
	}
	if err := r.run(ctx, runs); err != nil {
		return err
	}
	if outside.Passed > 0 || outside.Duplicates > 0 || outside.Foreign > 0 || outside.OtherLog > 0 {
		outside.End = time.Now()
		r.observe(outside)
	}
	return nil
}

// receive sorts records into runs. A record without a place in the log is a stray; a
// record for outside readers is only counted.
func (r *Runner) receive(records []events.Record) (used []*partitionRun, strays []*events.Record, outside projections.Batch) {
	var runs [events.Partitions]*partitionRun
	var list []events.Envelope // of the items, in one piece
	now := time.Now()
	for i := range records {
		foreign := outside.Foreign
		place, ok := r.placeOf(&records[i], now, &outside)
		if outside.Foreign > foreign {
			strays = append(strays, &records[i])
		}
		if !ok {
			continue
		}
		if list == nil {
			list = make([]events.Envelope, 0, len(records)-i)
		}
		e, err := codec.FromRecord(&records[i])
		list = append(list, e)
		it := item{place: place, event: &list[len(list)-1], offset: records[i].Offset, unread: err != nil, fault: err}
		p := place.Position.Partition
		if runs[p] == nil {
			runs[p] = &partitionRun{partition: p, items: make([]item, 0, rest(records[i:]))}
		}
		runs[p].items = append(runs[p].items, it)
	}
	for _, l := range runs {
		if l != nil {
			slices.SortStableFunc(l.items, func(a, b item) int { return int(a.place.Position.Number - b.place.Position.Number) })
			used = append(used, l)
		}
	}
	return used, strays, outside
}

// rest counts the records of the first one's partition: a batch may span one or many.
func rest(records []events.Record) (n int) {
	for i := range records {
		if records[i].Partition == records[0].Partition {
			n++
		}
	}
	return n
}

// placeOf returns the place of a record that has to be read; not ok if it is passed.
func (r *Runner) placeOf(record *events.Record, now time.Time, outside *projections.Batch) (_ events.Place, ok bool) {
	if record.Header(events.HeaderReplay) != nil {
		outside.Passed++
		return events.Place{}, false
	}
	place, err := codec.PlaceOf(record)
	if err != nil || record.Topic != r.Consumer.Topic {
		outside.Foreign++
		r.foreign(record.Topic, record.Partition, record.Offset, "it has no place in the log")
		return events.Place{}, false
	}
	if place.Log != r.Log.ID() && place.Log != uuid.Nil {
		outside.OtherLog++
		r.reportGhost(place, "it is of another log: another database shares the broker under the same topic names")
		return events.Place{}, false
	}
	if passed, again := r.Handed.passed(place, r.Log.ID(), now); passed {
		if again {
			outside.Duplicates++
		}
		return events.Place{}, false
	}
	return place, true
}

// foreign logs a record that is not ours. The log does not depend on it.
func (r *Runner) foreign(topic events.Topic, partition int16, offset int64, why string) {
	r.Logger.Error("skipped a record that is not of this log", "consumer", r.Consumer.Name, "topic", topic.Name(), "partition", partition, "offset", offset, "why", why)
}

// movedTries is how often a transaction is retried at once because generations joined
// or left meanwhile: enough for one retry per generation.
const movedTries = 3

// run processes the runs, one transaction after the other.
func (r *Runner) run(ctx context.Context, runs []*partitionRun) error {
	for len(runs) > 0 {
		began := time.Now()
		done, err := r.transact(ctx, runs, mode{})
		for again := 0; errors.Is(err, errMoved) && again < movedTries; again++ {
			done, err = r.transact(ctx, runs, mode{}) // a generation has joined, or left
		}
		if ofData(err) {
			done, err = r.transact(ctx, runs, mode{careful: true})
		}
		r.observeEnd(done, began, err)
		r.reuse(done.Applied)
		if err != nil {
			return fmt.Errorf("consume as %s: %w", r.Consumer.Name, err)
		}
		if runs = remaining(runs); len(runs) > 0 && r.Consumer.Paced {
			r.pace.rest(ctx, time.Since(began), r.Share)
		}
	}
	return nil
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
	return slices.DeleteFunc(runs, func(l *partitionRun) bool {
		l.items = l.items[l.taken:]
		return len(l.items) == 0
	})
}

// mode is how a transaction treats events that fail: if careful, it isolates them; if not, it
// fails with them and needs no savepoints. One of events that were handed over makes no dead
// letters.
type mode struct{ careful, handed bool }

// transact runs one transaction: it locks checkpoints, folds as much of each run as fits,
// appends follow-ups and moves the checkpoints.
func (r *Runner) transact(ctx context.Context, runs []*partitionRun, how mode) (_ projections.Batch, err error) {
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
	chain, err := r.chains(ctx, tx, runs, &done)
	if err != nil {
		return projections.Batch{}, err
	}
	if !slices.ContainsFunc(runs, (*partitionRun).moves) {
		return done, nil // only duplicates and the like: no checkpoint moves
	}
	done.Applied = slices.DeleteFunc(chain, func(e events.Envelope) bool { return r.Consumer.Misses(&e) })
	done.Passed += len(chain) - len(done.Applied)
	if r.Trace != nil && len(done.Applied) > 0 {
		var end func(error)
		ctx, end = r.Trace(ctx, &r.Consumer, began, done.Applied)
		defer func() { end(err) }()
	}
	all, err := r.foldAll(ctx, tx, done.Applied, runs, how.careful)
	if err == nil && how.handed && len(all.failed) > 0 {
		err = errLeft
	}
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

// committed reports the durable result, and hands over the follow-ups.
func (r *Runner) committed(runs []*partitionRun, done projections.Batch, appended []events.Envelope) {
	r.report(done.Failed)
	var moved []events.Position
	var partitions []int16
	for _, l := range runs {
		if l.moves() {
			to := events.Position{Partition: l.partition, Number: l.last}
			moved, partitions = append(moved, to), append(partitions, l.partition)
			r.Handed.reach(to, r.epochs.owner(l.partition, l.last))
		}
	}
	r.Moves.Move(r.Consumer.Name, moved)
	list := separate(appended)
	if r.Newest != nil {
		r.Newest.Put(list)
	}
	if done.FollowUps == 0 || r.Appended == nil {
		return
	}
	handed := r.Next.Pass(list)
	r.Appended(partitions, handed == max(done.FollowUps, len(list))) // more are appended if thresholds are crossed
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
		l.last, l.taken = l.checkpoint.position, 0
	}
	return r.prove(ctx, tx, runs)
}
