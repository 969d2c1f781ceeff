package consume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections"
)

// Lags reads how far the consumers of an instance are behind their topics. Their polls share one read.
type Lags struct {
	pool      Pool
	consumers []string
	topics    []int32

	mu    sync.Mutex
	began time.Time // of the last read; zero: before the first
	of    map[string][]lag
}

// NewLags returns the lags of the consumers that have a topic.
func NewLags(pool Pool, consumers []projections.Consumer) *Lags {
	l := &Lags{pool: pool}
	for i := range consumers {
		if c := &consumers[i]; c.Topic != 0 {
			l.consumers, l.topics = append(l.consumers, c.Name), append(l.topics, int32(c.Topic))
		}
	}
	return l
}

const (
	// lagsShared is how long a read is valid. Each consumer asks once in DefaultPollEvery.
	lagsShared = DefaultPollEvery / 2
	// lagsTime bounds a read: the other consumers wait for it.
	lagsTime = 5 * time.Second
)

// findAllBehind is findBehind for several consumers of topics.
const findAllBehind = `
SELECT k.consumer, c.partition, c.position, h.source
FROM unnest($1::text[], $2::int[]) k (consumer, topic)
JOIN LATERAL (SELECT DISTINCT partition, position FROM consumer_checkpoints WHERE consumer = k.consumer AND joined) c ON true
JOIN LATERAL (SELECT topic_positions[k.topic] AS source FROM log_heads WHERE partition = c.partition) h ON true
WHERE c.position < h.source
ORDER BY k.consumer, c.partition`

// behind returns the partitions in which a consumer is behind its topic, as of lagsShared ago or later.
func (l *Lags) behind(ctx context.Context, consumer string) ([]lag, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if began := time.Now(); l.began.IsZero() || began.Sub(l.began) > lagsShared {
		of, err := l.read(ctx)
		if err != nil {
			return nil, fmt.Errorf("compare checkpoints with heads: %w", err)
		}
		l.began, l.of = began, of
	}
	return l.of[consumer], nil
}

func (l *Lags) read(ctx context.Context) (map[string][]lag, error) {
	ctx, cancel := context.WithTimeout(ctx, lagsTime)
	defer cancel()
	rows, err := l.pool.Query(ctx, findAllBehind, l.consumers, l.topics)
	if err != nil {
		return nil, err
	}
	of := map[string][]lag{}
	var consumer string
	var g lag
	_, err = pgx.ForEachRow(rows, []any{&consumer, &g.partition, &g.checkpoint, &g.source}, func() error {
		of[consumer] = append(of[consumer], g)
		return nil
	})
	return of, err
}
