package audit

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// walkPage bounds the events that a walk holds in memory at a time.
const walkPage = 500

// EventWalk reads the log once, as it was when the walk began, by partition
// and position. Each step is a snapshot of its own: a slow or abandoned walk
// holds no lock or snapshot in the database.
type EventWalk struct {
	reads  *Reads
	viewer query.Viewer
	walk   *walk
}

// Walk begins a walk after a frontier.
func (r *Reads) Walk(ctx context.Context, v query.Viewer, f EventFilter, after Frontier) (*EventWalk, error) {
	w := &EventWalk{reads: r, viewer: v}
	err := r.Within(ctx, v, func(ctx context.Context, tx pgx.Tx) (err error) {
		w.walk, err = openWalk(ctx, tx, &f, after)
		return err
	})
	return w, err
}

// Done reports whether all events have been returned.
func (w *EventWalk) Done() bool { return w.walk.position() == nil }

// Next returns the next events; possibly zero before the walk is done.
func (w *EventWalk) Next(ctx context.Context) ([]events.Envelope, error) {
	return w.reads.goOn(ctx, w.viewer, w.walk)
}

// goOn reads the next events of a walk. After an error the walk is where it was.
func (r *Reads) goOn(ctx context.Context, v query.Viewer, w *walk) ([]events.Envelope, error) {
	var list []events.Envelope
	walked := *w
	err := r.Within(ctx, v, func(ctx context.Context, tx pgx.Tx) (err error) {
		list, err = walked.next(ctx, tx, walkPage)
		return err
	})
	if err != nil {
		return nil, err
	}
	*w = walked
	return list, nil
}

// TailStart is the start of a tail: after a frontier; at the Last matching events before the
// end of the log; or, with neither, at its end. A From in the filter is a start, too. Once: the tail ends where
// the log ends at its start.
type TailStart struct {
	After *Frontier
	Last  int
	Once  bool
}

// EventTail follows the log: it also returns events recorded meanwhile, each once.
type EventTail struct {
	reads  *Reads
	viewer query.Viewer
	filter EventFilter
	walk   *walk
	from   *time.Time
	once   bool
	seen   Frontier // the heads that the walk goes to
	given  Frontier
}

// Tail begins to follow the log.
func (r *Reads) Tail(ctx context.Context, v query.Viewer, f EventFilter, start TailStart) (*EventTail, error) {
	t := &EventTail{reads: r, viewer: v, filter: f, from: f.From, once: start.Once}
	err := r.Within(ctx, v, func(ctx context.Context, tx pgx.Tx) (err error) {
		var after Frontier
		if start.After != nil {
			after = *start.After
		}
		if t.seen, err = readHeads(ctx, tx, f.Partitions()); err != nil {
			return err
		}
		if t.walk, err = openWalk(ctx, tx, &t.filter, after); err != nil || start.After != nil {
			return err
		}
		if start.Last > 0 {
			return t.walk.toLast(ctx, tx, start.Last)
		}
		if f.From == nil {
			t.walk.after = t.walk.after.Join(t.walk.upTo)
		}
		return nil
	})
	t.filter.From = nil // the walk has passed the events before it that were recorded by now
	if err == nil {
		t.given = t.walk.after
	}
	return t, err
}

// Next returns at most a page of events from a bounded part of the log, in the order of recording; possibly zero. atEnd
// reports that the end of the log is reached for now, or the end of a tail with Once. The events of the page before are delivered.
func (t *EventTail) Next(ctx context.Context) (list []events.Envelope, atEnd bool, err error) {
	t.given = t.walk.after
	if t.walk.position() == nil {
		if t.once {
			return nil, true, nil
		}
		if more, err := t.more(ctx); err != nil || !more {
			return nil, err == nil, err
		}
	}
	if list, err = t.reads.goOn(ctx, t.viewer, t.walk); err != nil {
		return nil, false, err
	}
	if t.from != nil { // it may be a time to come
		list = slices.DeleteFunc(list, func(e events.Envelope) bool { return e.RecordedAt.Before(t.from.Truncate(time.Microsecond)) })
	}
	if len(list) == 0 {
		t.given = t.walk.after
	}
	slices.SortStableFunc(list, func(a, b events.Envelope) int { return a.RecordedAt.Compare(b.RecordedAt) })
	return list, false, nil
}

// more begins a walk through the events recorded since the last one.
func (t *EventTail) more(ctx context.Context) (bool, error) {
	err := t.reads.Within(ctx, t.viewer, func(ctx context.Context, tx pgx.Tx) error {
		heads, err := readHeads(ctx, tx, t.filter.Partitions())
		if err != nil || heads == t.seen {
			return err
		}
		next, err := openWalk(ctx, tx, &t.filter, t.walk.after)
		if err == nil {
			t.walk, t.seen = next, heads
		}
		return err
	})
	return err == nil && t.walk.position() != nil, err
}

// Pass marks an event of the last page as delivered and returns the cursor after it: a
// tail that begins there returns each following event once.
func (t *EventTail) Pass(e *events.Envelope) string {
	t.given[e.Position.Partition] = e.Position.Number
	return t.Cursor()
}

// Cursor is the frontier after the delivered events, as text. For one tenant it is a position.
func (t *EventTail) Cursor() string {
	if t.filter.TenantID == nil {
		return t.given.String()
	}
	partition := events.PartitionOf(*t.filter.TenantID)
	return events.Position{Partition: partition, Number: t.given[partition]}.String()
}

// toLast moves a walk so that at most the n newest events are left, within the
// positions of one page.
func (w *walk) toLast(ctx context.Context, tx pgx.Tx, n int) error {
	partitions := w.filter.Partitions()
	var in []int16
	var numbers []int64
	for _, p := range partitions {
		low := max(w.after[p], w.upTo[p]-w.mostScanned()/int64(len(partitions)))
		found, err := w.match(ctx, tx, events.Stretch{Partition: p, After: low, UpTo: w.upTo[p]}, true, n)
		if err != nil {
			return err
		}
		for _, number := range found {
			in, numbers = append(in, p), append(numbers, number)
		}
	}
	var last []query.Timed
	err := query.Run(ctx, tx, query.New(query.ReadTimes, []any{in, numbers}, query.Each(func(rows pgx.Rows) error {
		var e query.Timed
		err := rows.Scan(&e.Partition, &e.Number, &e.At)
		last = append(last, e)
		return err
	})))
	if err != nil {
		return err
	}
	slices.SortFunc(last, func(a, b query.Timed) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Partition, a.Partition), cmp.Compare(b.Number, a.Number))
	})
	w.after = w.after.Join(w.upTo)
	for _, e := range last[:min(n, len(last))] {
		w.after[e.Partition] = min(w.after[e.Partition], e.Number-1)
	}
	return nil
}
