package consume

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// Bounds of LostTails. A live pipe is faster; a lost record is not urgent.
const (
	DefaultTailEvery = time.Second
	DefaultTailAfter = 5 * time.Second
)

// ReadUpTo folds the events of the log up to the given positions, at most one for each partition. Nil
// means that all of them are committed.
func (r *Runner) ReadUpTo(ctx context.Context, positions []events.Position) error {
	runs := make([]*partitionRun, 0, len(positions))
	for _, p := range positions {
		runs = append(runs, upTo(p.Partition, p.Number))
	}
	return r.run(ctx, runs)
}

// upTo returns a run that is read from the log only.
func upTo(partition int16, position int64) *partitionRun {
	place := events.Place{Position: events.Position{Partition: partition, Number: position}}
	return &partitionRun{partition: partition, items: []item{{place: place, offset: -1, unread: true, head: true}}}
}

// Ahead returns the last position of each partition in which the consumer is behind its
// source.
func (r *Runner) Ahead(ctx context.Context) ([]events.Position, error) {
	lags, err := r.behind(ctx)
	if err != nil {
		return nil, err
	}
	ahead, behind := make([]events.Position, 0, len(lags)), int64(0)
	for _, g := range lags {
		ahead = append(ahead, events.Position{Partition: g.partition, Number: g.source})
		behind += g.source - g.checkpoint
	}
	r.pace.begin(behind, int64(r.Consumer.Bound()))
	return ahead, nil
}

// LostTails returns the positions of lost records at the end of a partition, which no
// later record reveals as a gap: the checkpoint stays below a position that the relay has
// passed. It compares with its earlier calls, which must not be concurrent.
func (r *Runner) LostTails(ctx context.Context) ([]events.Position, error) {
	lags, err := r.behindTopic(ctx)
	if err != nil {
		return nil, err
	}
	r.tails.after = cmp.Or(r.TailAfter, DefaultTailAfter)
	lost := r.tails.lost(lags, time.Now())
	if len(lost) > 0 {
		r.Logger.Warn("reading a lost tail from the log", "consumer", r.Consumer.Name, "partitions", len(lost))
	}
	return lost, nil
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

func (r *Runner) behindTopic(ctx context.Context) ([]lag, error) {
	if r.Lags == nil {
		return r.behind(ctx)
	}
	return r.Lags.behind(ctx, r.Consumer.Name)
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

// lost returns the end of each partition whose tail counts as lost at the given time.
func (w *tailWatch) lost(lags []lag, now time.Time) (ends []events.Position) {
	waiting := int64(0)
	for _, g := range lags {
		waiting += g.source - g.checkpoint
		if was := w.seen[g.partition]; was.target > 0 && g.checkpoint > was.checkpoint {
			w.moved, w.movedAt = w.moved+g.checkpoint-was.checkpoint, now
		}
	}
	for _, g := range lags {
		s := &w.seen[g.partition]
		if s.checkpoint != g.checkpoint || s.target <= g.checkpoint || s.target > g.source { // beyond the source: a failover lost it
			s.checkpoint, s.target, s.since = g.checkpoint, g.source, time.Time{}
		}
		still := now.Sub(s.since)
		busy := w.moved < s.due && now.Sub(w.movedAt) < w.after
		switch {
		case g.relayed < s.target:
		case s.since.IsZero():
			s.since, s.due = now, w.moved+waiting-(g.source-g.checkpoint)
		case still >= tailPatience*w.after, still >= w.after && !busy:
			ends = append(ends, events.Position{Partition: g.partition, Number: s.target})
			s.target = 0
		}
	}
	return ends
}
