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

// maxStretch bounds the positions that one statement scans in a partition for a consumer of the log, however few
// events match: the checkpoints stay locked meanwhile.
const maxStretch = 50_000

// stretches returns the events after each partition's checkpoint, in the order of partitions and positions, up to the limit of one
// transaction: those of a partition from memory if all are held, of the others from the database in one statement.
func (r *Runner) stretches(ctx context.Context, tx pgx.Tx, runs []*partitionRun, done *projections.Batch) (chain []events.Envelope,
	err error) {
	chain = r.reused()
	left := r.Consumer.Bound()
	each := r.Consumer.MaxPerPartition
	if r.Consumer.Topic == 0 {
		each = min(each, max(left/len(runs), 1))
	}
	var behind []*partitionRun
	for _, l := range runs {
		l.upTo = min(l.upTo, max(l.checkpoint.head, l.last))
		if l.upTo <= l.last {
			l.done = true // read before
			continue
		}
		if left == 0 {
			break
		}
		before, held := len(chain), false
		limit := min(each, left)
		if chain, held = r.recent(chain, l, limit); !held {
			behind = append(behind, l)
			continue
		}
		n := len(chain) - before
		r.reach(l, r.scanned(l), chain[before:], limit, done)
		left -= n
	}
	if len(behind) == 0 || left == 0 {
		return chain, nil
	}
	rest, err := r.fromDatabase(ctx, tx, behind, min(each, max(left/len(behind), 1)), done)
	if err != nil {
		return nil, err
	}
	chain = append(chain, rest...)
	slices.SortFunc(chain, inLogOrder)
	return chain, nil
}

// scanned returns the end of the stretch that one statement scans for a run of a consumer of the log.
func (r *Runner) scanned(l *partitionRun) int64 {
	if r.Consumer.Topic != 0 {
		return l.upTo
	}
	return min(l.upTo, l.last+maxStretch)
}

// recent appends the events of a run's stretch from memory, and reports whether it is read. If not, it has to be read from the
// database. An event that a failover has lost is of an earlier epoch than the head, or beyond it.
func (r *Runner) recent(chain []events.Envelope, l *partitionRun, limit int) ([]events.Envelope, bool) {
	if r.Recent == nil || !l.checkpoint.living {
		return chain, false
	}
	was := len(chain)
	chain, held := r.Recent.Stretch(chain, events.Stretch{Partition: l.partition, After: l.last, UpTo: r.scanned(l)}, l.checkpoint.epoch,
		limit)
	for i := was; i < len(chain); i++ {
		chain[i].Withheld = slices.Contains(l.checkpoint.withheld, chain[i].Position.Number)
	}
	return chain, held
}

// fromDatabase reads the stretches of runs. A consumer of a topic reads up to the topic's last event, wherever its message ends. Events of
// other subjects are passed unread, except the end of each stretch: if it is missing, the log has lost its end, and the checkpoint must
// not pass it.
func (r *Runner) fromDatabase(ctx context.Context, tx pgx.Tx, runs []*partitionRun, limit int,
	done *projections.Batch) (list []events.Envelope, err error) {
	stretches := make([]events.Stretch, len(runs))
	for i, l := range runs {
		stretches[i] = events.Stretch{Partition: l.partition, After: l.last, UpTo: r.scanned(l)}
		if r.Consumer.Topic != 0 {
			stretches[i].UpTo = l.checkpoint.head
		}
	}
	if r.Consumer.Topic != 0 {
		list, err = r.Log.ReadTopicTx(ctx, tx, stretches, r.Consumer.Topic, limit)
	} else {
		list, err = r.Log.ReadStretchesTx(ctx, tx, stretches, r.Consumer.Subjects, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	done.FromLog += len(list)
	slices.SortFunc(list, inLogOrder)
	var kept []events.Envelope
	for i, l := range runs {
		n, last := 0, l.last
		for n < len(list) && list[n].Position.Partition == l.partition {
			n++
		}
		own := list[:n]
		list = list[n:]
		for n = 0; n < len(own) && (r.Consumer.Topic == 0 || own[n].Previous <= last); n++ {
			last = own[n].Position.Number
		}
		switch {
		case n < len(own):
			r.logLoss("the log has a hole: an event is missing", events.Position{Partition: l.partition, Number: own[n].Previous})
			l.done = true
		case n == 0, n < limit && r.Consumer.Topic == 0 && last < stretches[i].UpTo:
			r.logLoss("the log has lost its end: its head is beyond its last event",
				events.Position{Partition: l.partition, Number: stretches[i].UpTo})
			l.done = true
		}
		if n > 0 {
			r.reach(l, last, own[:n], limit, done)
			kept = append(kept, own[:n]...)
		}
	}
	return kept, nil
}

func inLogOrder(a, b events.Envelope) int {
	return cmp.Or(cmp.Compare(a.Position.Partition, b.Position.Partition), cmp.Compare(a.Position.Number, b.Position.Number))
}

// reach notes that a run has read these events, which are all of its consumer up to a position, if they are below the limit.
func (r *Runner) reach(l *partitionRun, to int64, read []events.Envelope, limit int, done *projections.Batch) {
	if len(read) == limit {
		to = read[limit-1].Position.Number
	}
	if to > l.last && r.Consumer.Topic == 0 {
		done.Passed += int(to-l.last) - len(read)
	}
	l.last = max(l.last, to)
	l.done = l.done || l.last >= l.upTo
}

// logLoss logs, at most once a second, that an event of the log is missing. Its partition stops before it; the others continue.
func (r *Runner) logLoss(what string, p events.Position) {
	now := time.Now().Unix()
	if r.lostLoggedAt.Swap(now) != now {
		r.Logger.Error(what, "consumer", r.Consumer.Name, "position", p)
	}
}
