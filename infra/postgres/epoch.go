package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	lockAllHeadsSQL = `SELECT position FROM log_heads ORDER BY partition FOR UPDATE`
	historySQL      = `SELECT (SELECT system_identifier FROM pg_control_system()),
 ('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint`
	// Where the newest epoch of a partition belongs to another history, the next
	// one begins behind the head. Its number is the time, in seconds since 2020: a backup
	// that is restored for the second time does not know the number of the first, whose
	// records the topics still have.
	raiseEpochSQL = `WITH stale AS (
 SELECT h.partition, h.position + 1 AS from_position,
  CASE WHEN e.epoch IS NULL THEN 1 ELSE greatest(e.epoch + 1, extract(epoch FROM clock_timestamp())::int - 1577836800) END AS epoch
 FROM log_heads h
 LEFT JOIN LATERAL (SELECT epoch, system_identifier, timeline FROM log_epochs e
  WHERE e.partition = h.partition ORDER BY epoch DESC LIMIT 1) e ON true
 WHERE e.epoch IS NULL OR (e.system_identifier, e.timeline) <> ($1, $2)),
raised AS (INSERT INTO log_epochs (partition, epoch, from_position, system_identifier, timeline)
 SELECT partition, epoch, from_position, $1, $2 FROM stale)
UPDATE log_heads h SET epoch = s.epoch FROM stale s WHERE h.partition = s.partition`
)

// headsTime is how long an instance waits at its start for heads that others hold: longer
// than a server lets anybody pause in a transaction.
const headsTime = time.Minute

// awaitEpoch is ensureEpoch, again and again while another session holds heads for longer
// than anybody waits for a lock. One that is frozen, or died with its machine, may: an
// instance that comes in its place must not end for it.
func awaitEpoch(ctx context.Context, pool connections, logger *slog.Logger) error {
	for end := time.Now().Add(headsTime); ; {
		err := ensureEpoch(ctx, pool)
		if sqlState(err) != lockNotHad || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		logger.Warn("another session holds heads of the log; the start waits for it", "error", err)
	}
}

// ensureEpoch raises the epoch of every partition where the database is not the
// one that wrote the log last: a restored copy, or a promoted standby. Records of
// a future that no longer exists are known by their epoch.
func ensureEpoch(ctx context.Context, pool connections) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockAllHeadsSQL); err != nil {
			return fmt.Errorf("locking all heads: %w", err)
		}
		var system, timeline int64
		if err := tx.QueryRow(ctx, historySQL).Scan(&system, &timeline); err != nil {
			return fmt.Errorf("reading the database's identity: %w", err)
		}
		if _, err := tx.Exec(ctx, raiseEpochSQL, system, timeline); err != nil {
			return fmt.Errorf("raising the epoch: %w", err)
		}
		return nil
	})
}
