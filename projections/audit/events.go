package audit

import (
	"context"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// scannedPositions bounds the positions that one page scans: some tens of milliseconds.
const scannedPositions = 100_000

// Errors of queries about the log.
var (
	ErrSubjectUnknown error = &domain.Error{Code: "subject_unknown",
		Message: "subject is neither a subject, e.g. meterplex.usage.event.recorded.v1, nor a prefix of subjects, e.g. meterplex.usage"}
	ErrStreamInvalid error = &domain.Error{Code: "stream_invalid",
		Message: "stream is kind/id, where kind is usage, dead-letter, tenant, api-key, subscription, feature, plan or rebuild"}
)

// EventFilter selects events of the log; zero fields mean all. From and To bound the time
// of recording, half open.
type EventFilter struct {
	TenantID      *uuid.UUID // Platform: events of no tenant
	Subjects      []events.Subject
	Stream        Stream
	CorrelationID uuid.UUID
	From, To      *time.Time
}

// LogQuery asks for a page of at most Limit events after a frontier.
type LogQuery struct {
	EventFilter
	After Frontier
	Limit int
}

// LogPage is a page. It can hold fewer events than requested, even zero, and still
// have a Next: a page scans a bounded part of the log. Next is the end of the scanned
// part; nil at the log's end.
type LogPage struct {
	Data []events.Envelope
	Next *events.Position
}

// Events lists events of the log, by partition and position. Events recorded
// meanwhile are last in their partition, so that no page shifts.
func (r *Reads) Events(ctx context.Context, v query.Viewer, q LogQuery) (LogPage, error) {
	page := LogPage{Data: []events.Envelope{}}
	err := r.Within(ctx, v, func(ctx context.Context, tx pgx.Tx) error {
		w, err := openWalk(ctx, tx, &q.EventFilter, q.After)
		if err != nil {
			return err
		}
		if page.Data, err = w.next(ctx, tx, query.PageSize(q.Limit)); err != nil {
			return err
		}
		page.Next = w.position()
		return nil
	})
	return page, err
}

// walk scans the parts of each partition that a filter may select, in order.
type walk struct {
	filter   *EventFilter
	letters  []string // of a usage stream: its dead letters
	recorded int64    // of a usage stream: the position of the recorded event
	after    Frontier // passed
	upTo     Frontier // its end
	at       int      // current partition
}

// openWalk begins a walk from a frontier to the heads of the snapshot.
func openWalk(ctx context.Context, tx pgx.Tx, f *EventFilter, after Frontier) (*walk, error) {
	w := &walk{filter: f, after: after}
	var err error
	if w.upTo, err = readHeads(ctx, tx, f.Partitions()); err != nil {
		return nil, err
	}
	if err := w.bound(ctx, tx); err != nil {
		return nil, err
	}
	return w, w.followStream(ctx, tx)
}

// Partitions returns the partitions in which a filter can find events.
func (f *EventFilter) Partitions() []int16 {
	if f.TenantID != nil {
		return []int16{events.PartitionOf(*f.TenantID)}
	}
	return f.Stream.Partitions()
}

const readHeadsOf = `SELECT partition, position FROM log_heads WHERE partition = ANY ($1)`

func readHeads(ctx context.Context, tx pgx.Tx, partitions []int16) (Frontier, error) {
	var heads Frontier
	err := query.Run(ctx, tx, query.New(readHeadsOf, []any{partitions}, query.Each(func(rows pgx.Rows) error {
		var partition int16
		var head int64
		err := rows.Scan(&partition, &head)
		heads[partition] = head
		return err
	})))
	return heads, err
}

const readBounds = `
SELECT p, CASE WHEN $2::timestamptz IS NULL THEN 0 ELSE recorded_until(p, $2, false) END,
       CASE WHEN $3::timestamptz IS NULL THEN NULL ELSE recorded_until(p, $3, false) END
FROM unnest($1::smallint[]) p`

// bound turns times of recording into positions.
func (w *walk) bound(ctx context.Context, tx pgx.Tx) error {
	if w.filter.From == nil && w.filter.To == nil {
		return nil
	}
	return query.Run(ctx, tx, query.New(readBounds, []any{w.filter.Partitions(), w.filter.From, w.filter.To},
		query.Each(func(rows pgx.Rows) error {
			var partition int16
			var low int64
			var high *int64
			if err := rows.Scan(&partition, &low, &high); err != nil {
				return err
			}
			w.after[partition] = max(w.after[partition], low)
			if high != nil {
				w.upTo[partition] = min(w.upTo[partition], *high)
			}
			return nil
		})))
}

// next returns at most limit matching events, and moves past them and the others scanned.
func (w *walk) next(ctx context.Context, tx pgx.Tx, limit int) ([]events.Envelope, error) {
	began := w.after
	var positions []events.Position
	for left := w.mostScanned(); w.at < events.Partitions && left > 0 && len(positions) < limit; {
		p := int16(w.at)
		if w.after[p] >= w.upTo[p] {
			w.at++
			continue
		}
		until := w.after[p] + min(w.upTo[p]-w.after[p], left)
		found, err := w.match(ctx, tx, events.Stretch{Partition: p, After: w.after[p], UpTo: until}, false, limit-len(positions))
		if err != nil {
			return nil, err
		}
		for _, number := range found {
			positions = append(positions, events.Position{Partition: p, Number: number})
		}
		if len(positions) == limit {
			until = positions[len(positions)-1].Number
		}
		left -= until - w.after[p]
		w.after[p] = until
	}
	return w.read(ctx, tx, positions, began)
}

// The pages of usual events are not cut by query.PageBytes: 1000 of them have less.
const (
	envelopeBytes = 512 // of an event beside its payload, about
	firstRead     = 128 // events of a page that are read first; the size of the others is estimated by theirs
)

// read reads the events at positions until their page is full. It moves the walk, which began at a frontier, back to the last of them.
func (w *walk) read(ctx context.Context, tx pgx.Tx, positions []events.Position, began Frontier) ([]events.Envelope, error) {
	list, n, bytes := []events.Envelope{}, 0, 0
	for next := firstRead; n < len(positions) && bytes < query.PageBytes; next = 1 + n*(query.PageBytes-bytes)/bytes {
		some := positions[n:min(len(positions), n+next)]
		found, err := readEvents(ctx, tx, some)
		if err != nil {
			return nil, err
		}
		for i := range found {
			bytes += len(found[i].Payload)
		}
		list, n, bytes = append(list, found...), n+len(some), bytes+len(some)*envelopeBytes
	}
	if n < len(positions) {
		last := positions[n-1]
		for p := int(last.Partition) + 1; p <= min(w.at, events.Partitions-1); p++ {
			w.after[p] = began[p]
		}
		w.at, w.after[last.Partition] = int(last.Partition), last.Number
	}
	return list, nil
}

// position is that up to which the walk has come, nil at its end.
func (w *walk) position() *events.Position {
	for p := w.at; p < events.Partitions; p++ {
		if w.after[p] < w.upTo[p] {
			return &events.Position{Partition: int16(p), Number: w.after[p]}
		}
	}
	return nil
}

// mostScanned bounds the positions of a page. The events of a usage stream are found by indexes.
func (w *walk) mostScanned() int64 {
	if w.filter.Stream.Kind == streamUsage {
		return math.MaxInt64
	}
	return scannedPositions
}

const (
	readPositions      = `SELECT * FROM log_positions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	readUsagePositions = `SELECT * FROM usage_stream($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
)

// match returns the numbers of the matching events in a stretch.
func (w *walk) match(ctx context.Context, tx pgx.Tx, s events.Stretch, newestFirst bool, limit int) ([]int64, error) {
	f := w.filter
	var correlation *uuid.UUID
	if f.CorrelationID != uuid.Nil {
		correlation = &f.CorrelationID
	}
	var subjects []int16
	for _, subject := range f.Stream.among(f.Subjects) {
		subjects = append(subjects, int16(subject))
	}
	sql, args := readPositions, []any{s.Partition, f.TenantID, s.After, s.UpTo, subjects, correlation, f.Stream.Kind, f.Stream.ID,
		w.letters, newestFirst, limit}
	if f.Stream.Kind == streamUsage {
		sql, args = readUsagePositions, []any{s.Partition, f.TenantID, f.Stream.ID, w.recorded, w.letters, s.After, s.UpTo, subjects,
			correlation, newestFirst, limit}
	}
	var found []int64
	err := query.Run(ctx, tx, query.New(sql, args, query.Values(&found)))
	return found, err
}
