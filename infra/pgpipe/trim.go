package pgpipe

import (
	"context"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/events"
)

const (
	// KeepRead is how long a row is kept for inspection after every group has passed it.
	KeepRead = time.Hour
	// trimBatch bounds the rows per statement, and so the time that its locks are held.
	trimBatch = 1000
)

// trimRows deletes the oldest rows: those that every group has passed and that are older than $1 seconds,
// and all that are older than $2 seconds. An abandoned group must not keep rows for ever, and the log has
// the events that a group missed. Without groups only the second bound applies, and while the place of a group is
// in transactions that the server has not issued: it is of a dump, and Renumber has not run. created_at has no
// time zone and is written in the session's zone, like localtimestamp.
const trimRows = `
DELETE FROM %[1]s WHERE (transaction_id, "offset") IN (
  SELECT m.transaction_id, m."offset" FROM %[1]s m
  WHERE m.created_at < localtimestamp - make_interval(secs => $2)
     OR (m.created_at < localtimestamp - make_interval(secs => $1)
        AND (m.transaction_id, m."offset") <= (
          SELECT o.last_processed_transaction_id, o.offset_acked FROM %[2]s o
          ORDER BY o.last_processed_transaction_id, o.offset_acked LIMIT 1)
        AND NOT EXISTS (SELECT FROM %[2]s o WHERE o.last_processed_transaction_id >= pg_snapshot_xmax(pg_current_snapshot())))
  ORDER BY m.transaction_id, m."offset" LIMIT $3)`

// Retention returns the time for which Trim keeps rows of each topic at most.
func Retention() map[events.Topic]time.Duration {
	kept := map[events.Topic]time.Duration{}
	for _, t := range events.Topics() {
		kept[t.Topic] = events.TopicRetention
	}
	return kept
}

// Trim deletes rows that are no longer needed, in bounded statements, and returns their number. Run it
// every few minutes; several instances may run it.
func Trim(ctx context.Context, cfg Config) (int64, error) {
	return trim(ctx, cfg, KeepRead, events.TopicRetention, registered())
}

func trim(ctx context.Context, cfg Config, read, any time.Duration, topics []string) (int64, error) {
	var total int64
	for _, topic := range topics {
		statement := fmt.Sprintf(trimRows, cfg.messagesTable(topic), cfg.offsetsTable(topic))
		for {
			result, err := cfg.DB.ExecContext(ctx, statement, read.Seconds(), any.Seconds(), trimBatch)
			if err != nil {
				return total, fmt.Errorf("trim the pipe's %s: %w", topic, err)
			}
			n, err := result.RowsAffected()
			if err != nil {
				return total, fmt.Errorf("trim the pipe's %s: %w", topic, err)
			}
			total += n
			if n < trimBatch {
				break
			}
		}
	}
	return total, nil
}
