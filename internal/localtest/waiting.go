package localtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
)

// Session executes statements: a connection, a pool, or one of its connections.
type Session interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Blocks executes a statement and returns how many blocks it read, from memory or not.
func Blocks(t testing.TB, s Session, sql string, args ...any) int {
	t.Helper()
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := s.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// RareEventWaits requires that a statement on the lag of consumers reads as much of an empty log as of one where a dead letter waits behind
// 20,000 events of another topic, which all consumers but that of dead letters have passed. The dead letter is a minute old.
func RareEventWaits(t testing.TB, s Session, sql string, args ...any) {
	t.Helper()
	before := Blocks(t, s, sql, args...)
	for _, change := range []string{
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
			topic, subject, dedupe_key, body)
		 SELECT n, n - 1, now() - interval '1 hour', now(), gen_random_uuid(), gen_random_uuid(), 0, 1, 3, {usage.raw}, 1, n::text,
		 '{}'::json FROM generate_series(1, 20000) n
		 UNION ALL SELECT 20001, 0, now() - interval '1 min', now(), gen_random_uuid(), gen_random_uuid(), 0, 1, 3, {usage.dead-letter}, 1,
		 'd', '{}'::json`,
		`UPDATE log_heads SET position = 20001, topic_positions[{usage.raw}] = 20000, topic_positions[{usage.dead-letter}] = 20001
			WHERE partition = 3`,
		`UPDATE consumer_checkpoints SET position = 20001 WHERE partition = 3 AND consumer <> '` + events.GroupDeadLetter + `'`,
	} {
		if _, err := s.Exec(t.Context(), events.SQL(change)); err != nil {
			t.Fatal(err)
		}
	}
	if after := Blocks(t, s, sql, args...); after > before+100 {
		t.Errorf("%d blocks are read for a dead letter behind 20,000 events, %d in an empty log", after, before)
	}
}
