package relay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain/loop"
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

	Batch int // publications per transaction (500)
}

const (
	// defaultExpiryBatch bounds the time for which a relay that was moved back waits for a deleted row.
	defaultExpiryBatch = 500
	// expiryMargin is added to the retention: the clocks of the broker and of the database may differ.
	expiryMargin = time.Hour
)

// Look deletes the expired publications. It ends early if another instance is deleting.
func (x *Expiry) Look(ctx context.Context) error {
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

// expire deletes the expired publications of a topic and partition, each batch in a transaction of its own.
func (x *Expiry) expire(ctx context.Context, e cursors.Expired) (mine bool, err error) {
	batch := cmp.Or(x.Batch, defaultExpiryBatch)
	err = loop.Batches(ctx, func() (more bool, err error) {
		deleted := int64(0)
		err = pgx.BeginFunc(ctx, x.Pool, func(tx pgx.Tx) (err error) {
			deleted, mine, err = cursors.DeleteExpired(ctx, tx, e, batch)
			return err
		})
		if err == nil && mine {
			x.Deleted(deleted)
		}
		return mine && deleted == int64(batch), err
	})
	return mine, err
}
