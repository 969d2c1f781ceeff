package pgpipe

import (
	"context"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/events"
)

const (
	// KeepRead is how long a row stays after every group has passed it, for
	// somebody who wants to look.
	KeepRead = time.Hour
	// trimBatch bounds what one statement deletes, and so how long its locks live.
	trimBatch = 1000
)

// trimRows deletes the oldest rows: those that every group has passed and that
// are older than $1 seconds, and all that are older than $2 seconds: a group that
// is gone for good must not keep everything, and the log fills in what a group
// missed. Where there is no group only the second bound counts. created_at has no
// zone and is written in the session's: localtimestamp is too.
const trimRows = `
DELETE FROM %[1]s WHERE (transaction_id, "offset") IN (
  SELECT m.transaction_id, m."offset" FROM %[1]s m
  WHERE m.created_at < localtimestamp - make_interval(secs => $2)
     OR (m.created_at < localtimestamp - make_interval(secs => $1)
        AND (m.transaction_id, m."offset") <= (
          SELECT o.last_processed_transaction_id, o.offset_acked FROM %[2]s o
          ORDER BY o.last_processed_transaction_id, o.offset_acked LIMIT 1))
  ORDER BY m.transaction_id, m."offset" LIMIT $3)`

// Trim deletes what nobody needs any more, in bounded statements, and tells how
// many rows that were. Run it every few minutes; several instances may.
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
