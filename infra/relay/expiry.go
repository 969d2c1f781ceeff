package relay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay/cursors"
)

// Expiry deletes publications of records that are older than their topic's retention: receipts no longer
// show the offset of such a record. Any number of instances may run it; one of them deletes at a time.
type Expiry struct {
	Pool Pool
	// Retention returns the retention of each topic. Publications of topics that it does not name are
	// kept. After an error no row is deleted.
	Retention func(ctx context.Context) (map[events.Topic]time.Duration, error)
	Deleted   func(publications int64)
	Logger    *slog.Logger

	Every time.Duration // interval of looking for expired publications (10 min)
	Batch int           // publications per transaction (500)
}

const (
	defaultExpiryEvery = 10 * time.Minute
	// defaultExpiryBatch bounds the time for which a relay that was moved back waits for a deleted row.
	defaultExpiryBatch = 500
	// expiryMargin is added to the retention: the clocks of the broker and of the database may differ.
	expiryMargin = time.Hour
)

// Run deletes expired publications until ctx ends. It retries after the next interval while the database
// or the broker does not answer.
func (x *Expiry) Run(ctx context.Context) error {
	c := *x
	c.Every, c.Batch = orDefault(c.Every, defaultExpiryEvery), orDefault(c.Batch, defaultExpiryBatch)
	for sleep(ctx, c.Every) {
		if err := c.round(ctx); err != nil && ctx.Err() == nil {
			c.Logger.WarnContext(ctx, "cannot delete expired publications; will retry", "error", err)
		}
	}
	return nil
}

// round deletes the expired publications. It ends early if another instance is deleting.
func (x *Expiry) round(ctx context.Context) error {
	retention, err := x.Retention(ctx)
	if err != nil {
		return fmt.Errorf("reading the retention of the topics: %w", err)
	}
	var topics []cursors.Expiry
	for _, topic := range slices.Sorted(maps.Keys(retention)) {
		topics = append(topics, cursors.Expiry{Topic: topic, Age: retention[topic] + expiryMargin})
	}
	expired, err := cursors.FindExpired(ctx, x.Pool, topics)
	if err != nil {
		return err
	}
	for _, e := range expired {
		mine, err := x.expire(ctx, e)
		if err != nil || !mine {
			return err
		}
	}
	return nil
}

// expire deletes the expired publications of a topic and partition, each batch in a transaction of its
// own. Between batches it pauses for as long as a batch takes, so that it uses at most half of a session.
func (x *Expiry) expire(ctx context.Context, e cursors.Expired) (mine bool, err error) {
	for {
		began, deleted := time.Now(), int64(0)
		err := pgx.BeginFunc(ctx, x.Pool, func(tx pgx.Tx) (err error) {
			deleted, mine, err = cursors.DeleteExpired(ctx, tx, e, x.Batch)
			return err
		})
		if err != nil || !mine {
			return mine, err
		}
		x.Deleted(deleted)
		if deleted < int64(x.Batch) {
			return true, nil
		}
		if !sleep(ctx, time.Since(began)) {
			return true, ctx.Err()
		}
	}
}
