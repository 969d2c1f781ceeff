package pgpipe

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/events"
)

// clockMargin bounds the difference between the clocks of recording instances and of the database. A
// rewind that goes back too far only reads more known records.
const clockMargin = time.Minute

// A group has one place in a topic, for all partitions. Rows are ordered as watermill-sql reads them: by
// transaction, then by offset.
const (
	readOffset = `SELECT coalesce(offset_acked, 0), last_processed_transaction_id::text FROM %[2]s WHERE consumer_group = $1 FOR UPDATE`
	lastBefore = `SELECT "offset", transaction_id::text FROM %[1]s WHERE created_at < $1::timestamptz AT TIME ZONE 'UTC'
		ORDER BY transaction_id DESC, "offset" DESC LIMIT 1`
	moveOffset = `UPDATE %[2]s SET offset_acked = $2, last_processed_transaction_id = $3::xid8 WHERE consumer_group = $1
		AND (last_processed_transaction_id, coalesce(offset_acked, 0)) > ($3::xid8, $2)`
	beforeFirst = "0"
)

// Rewind is a watermill.Mover. The group may have members, which continue from there. Rows that every group has passed are
// kept for KeepRead, which bounds how far a group can go back; older events are in the log.
func Rewind(ctx context.Context, cfg Config, group, topic string, from int64) ([]events.ReplayStep, error) {
	tx, err := cfg.DB.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("move %s back: %w", group, err)
	}
	defer tx.Rollback()
	var old, to int64
	var oldTx string
	err = tx.QueryRowContext(ctx, cfg.format(topic, readOffset), group).Scan(&old, &oldTx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil // the group has not read and will start at the oldest row
	}
	if err != nil {
		return nil, fmt.Errorf("read the offset of %s: %w", group, err)
	}
	newTx := beforeFirst
	if from >= 0 {
		err = tx.QueryRowContext(ctx, cfg.format(topic, lastBefore), time.UnixMilli(from).Add(-clockMargin)).Scan(&to, &newTx)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("look up the offset of a time: %w", err)
		}
	}
	moved, err := tx.ExecContext(ctx, cfg.format(topic, moveOffset), group, to, newTx)
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return nil, fmt.Errorf("move %s back: %w", group, err)
	}
	if n, err := moved.RowsAffected(); err != nil || n == 0 {
		return nil, err
	}
	return []events.ReplayStep{{From: old, To: to}}, nil
}

func (c *Config) format(topic, statement string) string {
	return fmt.Sprintf(statement, c.messagesTable(topic), c.offsetsTable(topic))
}
