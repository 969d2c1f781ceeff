package consume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// Bounds of the poll for a consumer of a topic. The pipe, and the memory of this process, are faster.
const (
	DefaultPollEvery  = time.Second
	DefaultStillAfter = 5 * time.Second
)

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

// Waiting returns, for a consumer of a topic, the positions up to which this process holds new events in memory. Once in DefaultPollEvery
// it looks at the log, too, for partitions that are behind and stand still: the pipe has lost records there, or does not run.
// Its calls must not be concurrent.
func (r *Runner) Waiting(ctx context.Context) ([]events.Position, error) {
	var waiting []events.Position
	if r.Recent != nil {
		waiting = r.Recent.Ahead()
	}
	now := time.Now()
	if now.Sub(r.polls.at) < DefaultPollEvery {
		return waiting, nil
	}
	if r.Recent != nil {
		for _, p := range r.assignments.unassigned(now) {
			r.Recent.Leave(p)
		}
	}
	lags, err := r.behindTopic(ctx)
	if err != nil {
		return nil, err
	}
	still := r.polls.still(lags, now, cmp.Or(r.StillAfter, DefaultStillAfter))
	if len(still) > 0 {
		r.Logger.Warn("the pipe did not deliver events: reading the log", "consumer", r.Consumer.Name, "partitions", len(still))
		r.assignments.assign(still, now)
	}
	for _, p := range waiting {
		still = slices.DeleteFunc(still, func(s events.Position) bool { return s.Partition == p.Partition })
	}
	return append(waiting, still...), nil
}

// findBehind finds the partitions whose source is ahead of the checkpoint.
const findBehind = `
SELECT c.partition, c.position, h.source
FROM (SELECT DISTINCT partition, position FROM consumer_checkpoints WHERE consumer = $1 AND joined) c
JOIN (SELECT partition, CASE WHEN $2::int = 0 THEN position ELSE topic_positions[$2::int] END AS source FROM log_heads) h USING (partition)
WHERE c.position < h.source
ORDER BY c.partition`

// lag is a partition in which the consumer is behind its source.
type lag struct {
	partition  int16
	checkpoint int64
	source     int64 // last position of the source
}

func (r *Runner) behind(ctx context.Context) ([]lag, error) {
	rows, err := r.Pool.Query(ctx, findBehind, r.Consumer.Name, int(r.Consumer.Topic))
	if err != nil {
		return nil, fmt.Errorf("compare checkpoints with heads: %w", err)
	}
	lags, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g lag, err error) {
		return g, row.Scan(&g.partition, &g.checkpoint, &g.source)
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

// polls remembers how long each checkpoint that is behind has stood still.
type polls struct {
	at   time.Time // of the last poll
	seen [events.Partitions]struct {
		checkpoint int64
		since      time.Time // zero: it was not behind
	}
}

// still returns the last position of each partition whose checkpoint has stood still for some time.
func (w *polls) still(lags []lag, now time.Time, after time.Duration) (still []events.Position) {
	before := w.seen
	clear(w.seen[:])
	for _, g := range lags {
		s := before[g.partition]
		if s.since.IsZero() || s.checkpoint != g.checkpoint {
			s.checkpoint, s.since = g.checkpoint, now
		}
		if now.Sub(s.since) >= after {
			still = append(still, events.Position{Partition: g.partition, Number: g.source})
			s.since = now
		}
		w.seen[g.partition] = s
	}
	w.at = now
	return still
}
