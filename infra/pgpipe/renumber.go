package pgpipe

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// A dump copies transaction ids as data, to a server that has not issued them yet. Then new rows have smaller ids than the place of a
// group, and unread rows greater ones than those that readers take for committed. Restored rows are known by their offsets: the dump has
// the sequence, too, so that all new rows have greater ones.
const (
	// lastRestored returns the last offset of a row or group whose transaction id the server has not issued, which is of a dump. NULL:
	// no such row.
	lastRestored = `
SELECT greatest(
  (SELECT max(m."offset") FROM %[1]s m WHERE m.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())),
  (SELECT max(coalesce(o.offset_acked, 0)) FROM %[2]s o WHERE o.last_processed_transaction_id >= pg_snapshot_xmax(pg_current_snapshot())))`
	// The first lock waits for readers until they have acknowledged, the second one for publishers. Both may read.
	lockTables = `
LOCK TABLE %[2]s IN EXCLUSIVE MODE;
LOCK TABLE %[1]s IN SHARE ROW EXCLUSIVE MODE`
	// moveGroups moves each group before the first restored row that it has not passed, or behind the last restored row. Rows of the new
	// server come again: a group may have passed them although restored rows before them were hidden. It writes all groups, so that the
	// statement of a reader fails that began before.
	moveGroups = `
UPDATE %[2]s o SET last_processed_transaction_id = '1', offset_acked = coalesce((
  SELECT min(m."offset") - 1 FROM %[1]s m
  WHERE m."offset" <= $1 AND (m.transaction_id, m."offset") > (o.last_processed_transaction_id, coalesce(o.offset_acked, 0))), $1)`
	// renumberRows gives the restored rows the id 1, which no transaction has: they come before all others, in the order of their offsets.
	// The service may not update rows.
	renumberRows = `
WITH restored AS (
  DELETE FROM %[1]s WHERE "offset" <= $1 AND transaction_id <> '1' RETURNING "offset", uuid, created_at, payload, metadata)
INSERT INTO %[1]s ("offset", uuid, created_at, payload, metadata, transaction_id)
SELECT "offset", uuid, created_at, payload, metadata, '1' FROM restored`
)

// Renumber gives the rows and groups that a dump brought from another server transaction ids of the past of this one, so that each group
// reads all rows that it has not passed. If there are none, it runs one statement. Call it at the start, when the server may
// be another one, and before Trim; several instances may run it, beside readers and publishers. A topic that fails is unchanged.
func Renumber(ctx context.Context, cfg Config) error {
	if err := cfg.defaults(); err != nil {
		return err
	}
	topics := registered()
	searches, last, into := make([]string, len(topics)), make([]sql.NullInt64, len(topics)), make([]any, len(topics))
	for i, topic := range topics {
		searches[i], into[i] = "("+cfg.format(topic, lastRestored)+")", &last[i]
	}
	if err := cfg.DB.QueryRowContext(ctx, "SELECT "+strings.Join(searches, ", ")).Scan(into...); err != nil {
		return fmt.Errorf("search the pipe for rows of a dump: %w", err)
	}
	var failed error
	for i, topic := range topics {
		if !last[i].Valid {
			continue
		}
		if err := cfg.renumber(ctx, topic); err != nil {
			failed = errors.Join(failed, fmt.Errorf("renumber the pipe's %s: %w", topic, err))
		}
	}
	return failed
}

func (c *Config) renumber(ctx context.Context, topic string) error {
	tx, err := c.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, c.format(topic, lockTables)); err != nil {
		return err
	}
	var last sql.NullInt64 // none if another instance was faster
	if err := tx.QueryRowContext(ctx, c.format(topic, lastRestored)).Scan(&last); err != nil || !last.Valid {
		return err
	}
	if _, err := tx.ExecContext(ctx, c.format(topic, moveGroups), last.Int64); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, c.format(topic, renumberRows), last.Int64)
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	c.Logger.Warn("the pipe was restored from a dump of another server: its rows have new transaction ids", "topic", topic, "rows", rows)
	return nil
}
