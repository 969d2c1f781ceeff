package consume

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Bounds of the loops that poll the log.
const (
	DefaultPoll      = 50 * time.Millisecond // the longest delay after a lost wake-up
	DefaultTailEvery = time.Second
	DefaultTailAfter = 5 * time.Second // a live pipe is faster; a lost record is not urgent

	BackoffFirst = 100 * time.Millisecond
	BackoffLast  = 5 * time.Second
)

// chains returns the unbroken run of events after each partition's checkpoint, in the
// order of runs, up to the limit of one transaction.
func (r *Runner) chains(ctx context.Context, tx pgx.Tx, runs []*partitionRun, done *projections.Batch) (chain []events.Envelope, err error) {
	left := r.Consumer.MaxRecords
	if left == 0 {
		left = r.Consumer.MaxPerPartition * events.Partitions
	}
	if r.Consumer.Topic == 0 {
		return r.stretches(ctx, tx, runs, left, done)
	}
	for _, l := range runs {
		before := len(chain)
		chain, err = r.extend(ctx, tx, l, chain, min(left, r.Consumer.MaxPerPartition), done)
		if err != nil {
			return nil, err
		}
		if left -= len(chain) - before; left == 0 {
			break
		}
	}
	return chain, nil
}

// maxStretch bounds the positions that one statement scans in a partition, however few
// events match: the checkpoints stay locked meanwhile.
const maxStretch = 50_000

// logLostTail logs, at most once a second, that the log's head is beyond its last event.
// That partition stops; the others continue.
func (r *Runner) logLostTail(p events.Position) {
	now := time.Now().Unix()
	if r.lostLoggedAt.Swap(now) != now {
		r.Logger.Error("the log has lost its tail: its head is beyond its last event", "consumer", r.Consumer.Name, "position", p)
	}
}

// stretches returns the chain for a consumer that reads the log itself: the events after
// each partition's checkpoint, in one statement. Events of other subjects are passed
// unread, except the end of each stretch: if it is missing, the log has lost its tail,
// and the checkpoint must not pass it.
func (r *Runner) stretches(ctx context.Context, tx pgx.Tx, runs []*partitionRun, most int, done *projections.Batch) ([]events.Envelope, error) {
	limit := min(r.Consumer.MaxPerPartition, max(most/len(runs), 1))
	list := make([]events.Stretch, len(runs))
	for i, l := range runs {
		list[i] = events.Stretch{Partition: l.partition, After: l.last, UpTo: min(l.items[0].place.Position.Number, l.last+maxStretch)}
	}
	chain, err := r.Log.ReadStretchesTx(ctx, tx, list, r.Consumer.Subjects, limit)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	slices.SortFunc(chain, func(a, b events.Envelope) int {
		return cmp.Or(cmp.Compare(a.Position.Partition, b.Position.Partition), cmp.Compare(a.Position.Number, b.Position.Number))
	})
	rest := chain
	for i, l := range runs {
		n, to := 0, l.last
		for n < len(rest) && rest[n].Position.Partition == l.partition {
			to = rest[n].Position.Number
			n++
		}
		rest = rest[n:]
		lost := n < limit && to < list[i].UpTo
		if lost {
			r.logLostTail(events.Position{Partition: l.partition, Number: list[i].UpTo})
		}
		if lost || to >= l.items[0].place.Position.Number {
			l.taken = 1
		}
		if to > l.last {
			done.Passed += int(to-l.last) - n
			l.last = to
		}
	}
	done.FromLog += len(chain)
	return chain, nil
}

// extend appends up to limit events of a partition to the chain. If an item does not
// follow the last event, the pipe left a gap and the log is read instead. The log is also
// read for a stand-in whose event is not withheld in the database, because a restore undid that.
func (r *Runner) extend(ctx context.Context, tx pgx.Tx, l *partitionRun, chain []events.Envelope, limit int, done *projections.Batch) ([]events.Envelope, error) {
	for ; l.taken < len(l.items); l.taken++ {
		it := &l.items[l.taken]
		if !r.wanted(l, it, done) {
			continue
		}
		if limit == 0 {
			return chain, nil
		}
		withheld := slices.Contains(l.checkpoint.withheld, it.place.Position.Number)
		if !it.unread && it.place.Previous == l.last && (withheld || !it.event.Withheld) {
			chain, l.last = append(chain, it.event), it.place.Position.Number
			chain[len(chain)-1].Withheld = withheld
			limit--
			continue
		}
		read, err := r.Log.ReadTx(ctx, tx, l.partition, l.last, it.place.Position.Number, r.Consumer.Topic, limit)
		if err != nil {
			return nil, fmt.Errorf("read the log from %s: %w", events.Position{Partition: l.partition, Number: l.last}, err)
		}
		full := len(read) == limit
		if len(read) > 0 {
			chain, l.last = append(chain, read...), read[len(read)-1].Position.Number
			limit -= len(read)
			done.FromLog += len(read)
		}
		if l.last < it.place.Position.Number {
			if full {
				return chain, nil
			}
			done.Foreign++
			r.foreign(r.Consumer.Topic, l.partition, it.offset, "its position is another event's")
		}
	}
	return chain, nil
}

// wanted reports whether the item is still ahead; if not, it counts the reason.
func (r *Runner) wanted(l *partitionRun, it *item, done *projections.Batch) bool {
	position := it.place.Position.Number
	switch {
	case it.head:
		return position > l.last
	case r.epochs.owner(l.partition, position) != it.place.Epoch:
		done.Ghosts++
		r.reportGhost(it.place, "its epoch does not own the position")
	case it.ghost:
		done.Ghosts++
		r.reportGhost(it.place, "the log has another event at the position")
	case position <= l.last:
		done.Duplicates++
	case position > l.checkpoint.head:
		done.Foreign++
		r.foreign(r.Consumer.Topic, l.partition, it.offset, "its position is beyond the log's head")
	default:
		return true
	}
	return false
}

// findBehind finds the partitions whose source is ahead of the checkpoint.
const findBehind = `
SELECT c.partition, c.position, h.source, r.position
FROM (SELECT DISTINCT partition, position FROM consumer_checkpoints WHERE consumer = $1 AND joined) c
JOIN (SELECT partition, CASE WHEN $2::int = 0 THEN position ELSE topic_positions[$2::int] END AS source FROM log_heads) h USING (partition)
JOIN relay_cursors r USING (partition)
WHERE c.position < h.source
ORDER BY c.partition`

// lag is a partition in which the consumer is behind its source.
type lag struct {
	partition  int16
	checkpoint int64
	source     int64 // last position of the source
	relayed    int64 // the relay's cursor
}

func (r *Runner) behind(ctx context.Context) ([]lag, error) {
	rows, err := r.Pool.Query(ctx, findBehind, r.Consumer.Name, int(r.Consumer.Topic))
	if err != nil {
		return nil, fmt.Errorf("compare checkpoints with heads: %w", err)
	}
	lags, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g lag, err error) {
		return g, row.Scan(&g.partition, &g.checkpoint, &g.source, &g.relayed)
	})
	if err != nil {
		return nil, fmt.Errorf("compare checkpoints with heads: %w", err)
	}
	return lags, nil
}

// upTo returns a run that is read from the log only.
func upTo(partition int16, position int64) *partitionRun {
	place := events.Place{Position: events.Position{Partition: partition, Number: position}}
	return &partitionRun{partition: partition, items: []item{{place: place, offset: -1, unread: true, head: true}}}
}

// Follow consumes the log itself until the context ends. A wake-up is a hint; polling
// the heads bounds the delay. It retries after outages.
func (r *Runner) Follow(ctx context.Context, wake <-chan struct{}) error {
	return r.loop(ctx, cmp.Or(r.Poll, DefaultPoll), wake, func() error {
		lags, err := r.behind(ctx)
		if err != nil {
			return err
		}
		runs := make([]*partitionRun, 0, len(lags))
		for _, g := range lags {
			runs = append(runs, upTo(g.partition, g.source))
		}
		return r.run(ctx, runs)
	})
}

// HealTail polls, until the context ends, for lost records at the end of a partition,
// which no later record reveals as a gap: the checkpoint stays below a position that the
// relay has passed. It reads those records from the log.
func (r *Runner) HealTail(ctx context.Context) error {
	w := tailWatch{after: cmp.Or(r.TailAfter, DefaultTailAfter)}
	return r.loop(ctx, cmp.Or(r.TailEvery, DefaultTailEvery), nil, func() error {
		lags, err := r.behind(ctx)
		if err != nil {
			return err
		}
		runs := w.lost(lags, time.Now())
		if len(runs) > 0 {
			r.Logger.Warn("reading a lost tail from the log", "consumer", r.Consumer.Name, "partitions", len(runs))
		}
		return r.run(ctx, runs)
	})
}

// tailWatch remembers how long each checkpoint has stayed below the relayed position, and
// how far all checkpoints moved meanwhile: a consumer with a backlog may leave a
// partition alone for long, and the topic will still deliver it.
type tailWatch struct {
	after   time.Duration
	moved   int64     // sum of the observed movements of all checkpoints
	movedAt time.Time // time of the last observed movement
	seen    [events.Partitions]struct {
		checkpoint, target int64
		since              time.Time // zero: not relayed yet
		due                int64     // value of moved at which the rest of that backlog is done
	}
}

// tailPatience times TailAfter is when a tail counts as lost even if other partitions move.
const tailPatience = 4

// lost returns a run for each partition whose tail counts as lost at the given time.
func (w *tailWatch) lost(lags []lag, now time.Time) (runs []*partitionRun) {
	waiting := int64(0)
	for _, g := range lags {
		waiting += g.source - g.checkpoint
		if was := w.seen[g.partition]; was.target > 0 && g.checkpoint > was.checkpoint {
			w.moved, w.movedAt = w.moved+g.checkpoint-was.checkpoint, now
		}
	}
	for _, g := range lags {
		s := &w.seen[g.partition]
		if s.checkpoint != g.checkpoint || s.target <= g.checkpoint {
			s.checkpoint, s.target, s.since = g.checkpoint, g.source, time.Time{}
		}
		still := now.Sub(s.since)
		busy := w.moved < s.due && now.Sub(w.movedAt) < w.after
		switch {
		case g.relayed < s.target:
		case s.since.IsZero():
			s.since, s.due = now, w.moved+waiting-(g.source-g.checkpoint)
		case still >= tailPatience*w.after, still >= w.after && !busy:
			runs = append(runs, upTo(g.partition, s.target))
			s.target = 0
		}
	}
	return runs
}

// loop calls round at each tick or wake-up until the context ends. After a failure it
// waits longer each time.
func (r *Runner) loop(ctx context.Context, every time.Duration, wake <-chan struct{}, round func() error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	jitter := r.Jitter
	if jitter == nil {
		jitter = rand.N[time.Duration]
	}
	backoff := BackoffFirst
	for {
		hint := wake
		if backoff > BackoffFirst {
			hint = nil // a new event does not end an outage
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-hint:
		}
		began := time.Now()
		err := round()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.Logger.Warn("will try again", "consumer", r.Consumer.Name, "in", backoff, "error", err)
			timer.Reset(backoff/2 + jitter(backoff/2))
			backoff = min(2*backoff, BackoffLast)
		default:
			timer.Reset(every)
			backoff = BackoffFirst
			Idle(ctx, min(minRound, every)-time.Since(began))
		}
	}
}

// minRound keeps a stream of hints from becoming a stream of transactions, each of which
// costs about the same for one event as for a hundred. A follower of the log is behind it
// by half of this on average.
const minRound = 25 * time.Millisecond

func Idle(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
