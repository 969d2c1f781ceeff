package store

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/internal/must"
)

// day is the unit of the retentions.
const day = 24 * time.Hour

func retention(pool *pgxpool.Pool, batch int) *Retention {
	return &Retention{Pool: pool, Answers: 30 * day, Ended: 90 * day, Logger: slog.New(slog.DiscardHandler), Batch: batch}
}

func expireAll(t *testing.T, r *Retention) {
	t.Helper()
	must.OK(t, r.Look(t.Context()))
}

func run(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	must.Exec(t, pool, sql, args...)
}

// Old answers are dropped in batches, young ones are not, and each key remains with its request.
func TestOldAnswersAreDroppedAndTheirKeysRemain(t *testing.T) {
	_, _, pool, _ := openStore(t)
	run(t, pool, `INSERT INTO idempotency_answers (tenant_id, key, request_hash, status, body, created_at)
 SELECT $1, 'k/' || n, sha256(n::text::bytea), 0, '{"a":1}', now() - make_interval(hours => n * 24) FROM generate_series(1, 60) n`,
		uuid.Nil)
	hashes := func() int {
		return count(t, pool, `SELECT count(*) FROM idempotency_answers a JOIN generate_series(1, 60) n ON a.key = 'k/' || n
			AND a.request_hash = sha256(n::text::bytea)`)
	}
	expireAll(t, retention(pool, 7))
	if n := count(t, pool, `SELECT count(*) FROM idempotency_answers WHERE body IS NOT NULL AND key IN (SELECT 'k/' || n
		FROM generate_series(1, 29) n)`); n != 29 {
		t.Errorf("%d of 29 young answers are kept", n)
	}
	if n := count(t, pool,
		`SELECT count(*) FROM idempotency_answers WHERE body IS NOT NULL AND created_at < now() - interval '30 days'`); n != 0 {
		t.Errorf("%d old answers are kept", n)
	}
	if hashes() != 60 {
		t.Errorf("%d of 60 keys remain with the hashes of their requests", hashes())
	}
	var none int64
	for _, sql := range []string{`SELECT expire_answers('0', 100)`, `SELECT expire_answers('-1 day', 100)`,
		`SELECT expire_answers(NULL, 100)`} {
		run(t, pool, `INSERT INTO idempotency_answers (tenant_id, key, request_hash, status, body, created_at) VALUES ($1, $2, '', 0, '{}',
			now() - interval '23 hours')`, uuid.Nil, sql)
		must.OK(t, pool.QueryRow(t.Context(), sql).Scan(&none))
		if n := count(t, pool, `SELECT count(*) FROM idempotency_answers WHERE key = $1 AND body IS NOT NULL`, sql); n != 1 {
			t.Errorf("%s dropped an answer of this day", sql)
		}
	}
}

// A function that deletes does so for at most 10,000 rows at once, even if no row is old.
func TestOldRowsAreDeletedInBoundedBatches(t *testing.T) {
	_, _, pool, _ := openStore(t)
	for _, function := range []string{"expire_answers", "expire_replays", "expire_rebuild_units", "expire_reservations"} {
		for most, want := range map[string]string{"1": "", "10000": "", "0": "0 rows", "-1": "-1 rows", "10001": "10001 rows",
			"NULL": "NULL rows"} {
			_, err := pool.Exec(t.Context(), `SELECT `+function+`('90 days', `+most+`)`)
			if want == "" && err != nil || want != "" && (err == nil ||
				!strings.Contains(err.Error(), want+" cannot be deleted at once: delete from 1 to 10000, and call again for the others")) {
				t.Errorf("%s of %s rows: %v", function, most, err)
			}
		}
	}
}

// Replays are deleted with their units if they ended long ago and no record is published again for them.
func TestOnlyReplaysThatEndedLongAgoAreDeleted(t *testing.T) {
	_, _, pool, _ := openStore(t)
	run(t, pool, `UPDATE relay_cursors SET position = 50 WHERE partition = 3`)
	kept := map[string]bool{}
	for _, c := range []struct {
		name, kind, state string
		ended             time.Duration // before now; 0: not ended
		upTo              int64         // in partition 3, whose cursor is at 50
		kept              bool
	}{
		{"ended 91 days ago", "range", "DONE", 91 * day, 40, false},
		{"failed 91 days ago", "range", "FAILED", 91 * day, 40, false},
		{"a consumer's rewind", "consumer", "DONE", 91 * day, 90, false},
		{"a rewind of the relay, published again", "relay", "DONE", 91 * day, 50, false},
		{"a rewind of the relay, not yet published again", "relay", "DONE", 91 * day, 51, true},
		{"ended 89 days ago", "range", "DONE", 89 * day, 40, true},
		{"begun long ago, and running", "range", "RUNNING", 0, 40, true},
		{"a rewind that waits for its consumer", "consumer", "RUNNING", 0, 40, true},
	} {
		id := uuid.Must(uuid.NewV7())
		var ended *time.Time
		if c.ended > 0 {
			at := time.Now().Add(-c.ended)
			ended = &at
		}
		run(t, pool, `INSERT INTO replays (id, kind, reason, state, created_at, ended_at) VALUES ($1, $2, $3, $4,
			now() - interval '200 days', $5)`, id, c.kind, c.name, c.state, ended)
		run(t, pool, `INSERT INTO replay_units (replay_id, partition, first, cursor, upto) VALUES ($1, 3, 0, 30, $2), ($1, 4, 0, 0, 0)`, id,
			c.upTo)
		kept[c.name] = c.kept
	}
	expireAll(t, retention(pool, 2))
	for name, want := range kept {
		if n := count(t, pool, `SELECT count(*) FROM replays r JOIN replay_units u ON u.replay_id = r.id WHERE r.reason = $1`,
			name); n != map[bool]int{true: 2}[want] {
			t.Errorf("%s: %d units are kept", name, n)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM replays`); n != 4 {
		t.Errorf("%d replays are kept", n)
	}
}
