package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Retention deletes rows that are no longer needed: the answers kept for Idempotency-Keys, ended replays,
// and the units of rebuilds whose generation is dropped, ended deliveries of webhooks, and ended sessions and links of the console.
// Functions of the database delete the others than the last three: the service's role may not, and they keep each row for a day at least.
// Any number of instances may run it.
type Retention struct {
	Pool    postgres.Pool
	Answers time.Duration // age at which an answer is dropped; its key remains
	Ended   time.Duration // since the end of a replay or rebuild
	// Reservations is the time since the end of a reservation after which its row is deleted; its events remain.
	Reservations time.Duration
	Logger       *slog.Logger

	Batch int // answers, replays or rebuilds for each transaction (500)
}

// defaultRetentionBatch bounds the time for which a repeat waits for the row of its answer.
const defaultRetentionBatch = 500

// Look deletes all rows that are old now. An error for one table does not stop the others.
func (r *Retention) Look(ctx context.Context) error {
	return errors.Join(
		r.expire(ctx, "answers", `SELECT expire_answers(make_interval(secs => $1), $2)`, r.Answers),
		r.expire(ctx, "replays", `SELECT expire_replays(make_interval(secs => $1), $2)`, r.Ended),
		r.expire(ctx, "units of rebuilds", `SELECT expire_rebuild_units(make_interval(secs => $1), $2)`, r.Ended),
		r.expire(ctx, "reservations", `SELECT expire_reservations(make_interval(secs => $1), $2)`, r.Reservations),
		r.expire(ctx, "deliveries of webhooks", expireDeliveriesSQL, webhook.DeliveriesKept),
		r.expire(ctx, "idle sessions of the console", expireIdleSessionsSQL, commands.ConsoleIdleTime),
		r.expire(ctx, "old sessions of the console", expireSessionsSQL, commands.ConsoleSessionTime),
		r.expire(ctx, "links of the console", expireLinksSQL, 0))
}

// expireDeliveriesSQL deletes deliveries that ended, with their attempts. Those that are replayed meanwhile stay.
const expireDeliveriesSQL = `WITH old AS (DELETE FROM webhook_deliveries WHERE state <> 'PENDING' AND id IN (
  SELECT id FROM webhook_deliveries WHERE state <> 'PENDING' AND ended_at < now() - make_interval(secs => $1) ORDER BY ended_at LIMIT $2)
  RETURNING id)
 SELECT count(*) FROM old`

// Ended sessions and links of the console. Their rows are few: a key opens few sessions a minute.
const (
	expireIdleSessionsSQL = `WITH old AS (DELETE FROM console_sessions WHERE token_hash IN (
  SELECT token_hash FROM console_sessions WHERE used_at < now() - make_interval(secs => $1) ORDER BY used_at LIMIT $2) RETURNING token_hash)
 SELECT count(*) FROM old`
	expireSessionsSQL = `WITH old AS (DELETE FROM console_sessions WHERE token_hash IN (
  SELECT token_hash FROM console_sessions WHERE created_at < now() - make_interval(secs => $1) ORDER BY created_at LIMIT $2)
  RETURNING token_hash)
 SELECT count(*) FROM old`
	expireLinksSQL = `WITH old AS (DELETE FROM console_links WHERE token_hash IN (
  SELECT token_hash FROM console_links WHERE expires_at <= now() - make_interval(secs => $1) ORDER BY expires_at LIMIT $2)
  RETURNING token_hash)
 SELECT count(*) FROM old`
)

func (r *Retention) expire(ctx context.Context, rows, sql string, age time.Duration) error {
	batch, total := cmp.Or(r.Batch, defaultRetentionBatch), 0
	err := loop.Batches(ctx, func() (more bool, err error) {
		n := 0
		if err := r.Pool.QueryRow(ctx, sql, age.Seconds(), batch).Scan(&n); err != nil {
			return false, fmt.Errorf("deleting old %s: %w", rows, err)
		}
		total += n
		return n == batch, nil
	})
	if err == nil && total > 0 {
		r.Logger.InfoContext(ctx, "old rows were deleted", "rows", rows, "count", total)
	}
	return err
}
