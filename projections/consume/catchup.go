package consume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// chains returns the unbroken run of events after each partition's checkpoint, in the
// order of runs, up to the limit of one transaction.
func (r *Runner) chains(ctx context.Context, tx pgx.Tx, runs []*partitionRun, done *projections.Batch) (_ []events.Envelope, err error) {
	left, chain := r.Consumer.Bound(), r.reused()
	if r.Consumer.Topic == 0 {
		return r.stretches(ctx, tx, runs, chain, left, done)
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
func (r *Runner) stretches(ctx context.Context, tx pgx.Tx, runs []*partitionRun, chain []events.Envelope, most int, done *projections.Batch) ([]events.Envelope, error) {
	limit := min(r.Consumer.MaxPerPartition, max(most/len(runs), 1))
	var list []events.Stretch // to be read from the database
	var behind []*partitionRun
	for _, l := range runs {
		s := events.Stretch{Partition: l.partition, After: l.last, UpTo: min(l.items[0].place.Position.Number, l.last+maxStretch)}
		before, held := len(chain), false
		if chain, held = r.recent(chain, l, s, limit); held {
			n, to := len(chain)-before, max(s.UpTo, l.last)
			if n == limit {
				to = chain[len(chain)-1].Position.Number
			}
			l.read(to, n, done)
			continue
		}
		list, behind = append(list, s), append(behind, l)
	}
	if len(list) == 0 {
		return chain, nil
	}
	rest, err := r.Log.ReadStretchesTx(ctx, tx, list, r.Consumer.Subjects, limit)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	done.FromLog += len(rest)
	chain = append(chain, rest...)
	slices.SortFunc(rest, inLogOrder)
	for i, l := range behind {
		n, to := 0, l.last
		for n < len(rest) && rest[n].Position.Partition == l.partition {
			to = rest[n].Position.Number
			n++
		}
		rest = rest[n:]
		if n < limit && to < list[i].UpTo {
			r.logLostTail(events.Position{Partition: l.partition, Number: list[i].UpTo})
			l.taken = 1
		}
		l.read(to, n, done)
	}
	slices.SortFunc(chain, inLogOrder)
	return chain, nil
}

func inLogOrder(a, b events.Envelope) int {
	return cmp.Or(cmp.Compare(a.Position.Partition, b.Position.Partition), cmp.Compare(a.Position.Number, b.Position.Number))
}

// recent appends the events of a stretch from memory, and reports whether it is read. If not, it has to be read from the
// database. An event that a failover has lost is of an earlier epoch than the head, or beyond it.
func (r *Runner) recent(chain []events.Envelope, l *partitionRun, s events.Stretch, limit int) ([]events.Envelope, bool) {
	if s.UpTo <= s.After {
		return chain, true // read meanwhile
	}
	if r.Recent == nil || !l.checkpoint.living || s.UpTo > l.checkpoint.head {
		return chain, false
	}
	return r.Recent.Stretch(chain, s, l.checkpoint.epoch, limit)
}

// read notes that a run of a consumer of the log has reached a position by so many events.
func (l *partitionRun) read(to int64, n int, done *projections.Batch) {
	if to >= l.items[0].place.Position.Number {
		l.taken = 1
	}
	if to > l.last {
		done.Passed += int(to-l.last) - n
		l.last = to
	}
}

// extend appends up to limit events of a partition to the chain. If an item does not
// follow the last event, the pipe left a gap and the log is read instead. The log is also
// read for a stand-in whose event is not withheld in the database, because a restore undid that.
func (r *Runner) extend(ctx context.Context, tx pgx.Tx, l *partitionRun, chain []events.Envelope, limit int, done *projections.Batch) ([]events.Envelope, error) {
	chain = slices.Grow(chain, min(limit, len(l.items)-l.taken))
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
			chain, l.last = append(chain, *it.event), it.place.Position.Number
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
