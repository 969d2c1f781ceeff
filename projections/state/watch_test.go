package state

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// migrated returns a pool on an empty migrated database.
func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: localtest.Migrated(t, postgres.Migrate), ApplicationName: "test"})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// A dead letter needs attention within two seconds, not only once the large counts are read again; and a count that is larger than a
// read between goes stays.
func TestADeadLetterIsCountedByTheNextRead(t *testing.T) {
	pool := migrated(t)
	fail := func(from, to int) {
		t.Helper()
		must.Exec(t, pool, `INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason,
			producer_event_id, feature, source_position, topic, retry_count, first_failed_at, last_failed_at)
		 SELECT 1, gen_random_uuid(), 3, $1, 'VALIDATION', 'FAILED', 'c', 'r', '', 'f', n, 't', 0, now(), now()
		 FROM generate_series($2::int, $3::int) n`, uuid.New(), from, to)
	}
	w := &Watch{Pool: pool, Accounts: func(context.Context) (Accounts, error) { return Accounts{}, nil }}
	read := func(want int64) {
		t.Helper()
		w.Read(t.Context())
		got := int64(0)
		for _, of := range w.State().DeadLetters.Groups {
			if of.Status == "FAILED" {
				got += of.Count
			}
		}
		if got != want {
			t.Fatalf("read %d: %d dead letters are FAILED, not %d", w.reads, got, want)
		}
	}
	read(0)
	fail(1, 1)
	read(1)
	fail(2, 1500)
	read(fewLetters) // at least
	for w.reads < slowEach {
		read(fewLetters)
	}
	read(1500)
	fail(1501, 1600)
	read(1500)
	must.Exec(t, pool, `UPDATE dead_letter_events SET status = 'RESOLVED' WHERE source_position > 3`)
	read(3)
}

// A part that cannot be read stays as it was, and the state is as old as its last complete read.
func TestAStateThatCannotBeReadStays(t *testing.T) {
	pool := migrated(t)
	w := &Watch{Pool: pool, Accounts: func(context.Context) (Accounts, error) { return Accounts{Differ: 7}, nil }}
	w.Read(t.Context())
	before := *w.State()
	if before.ReadAt.IsZero() || before.Accounts.Differ != 7 || len(before.Outbox.Partitions) != 32 || len(before.Lags) == 0 ||
		before.Server == nil {
		t.Fatalf("%+v", before)
	}
	must.Exec(t, pool, `UPDATE log_heads SET position = 5`)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if w.Read(gone); w.State().ReadAt != before.ReadAt || w.State().Outbox.Recorded() != 0 || len(w.State().Lags) != len(before.Lags) {
		t.Errorf("after a read that failed: %+v", w.State())
	}
	if w.Read(t.Context()); !w.State().ReadAt.After(before.ReadAt) || w.State().Outbox.Recorded() != 5*32 || before.Outbox.Recorded() != 0 {
		t.Errorf("after the next read: %+v", w.State())
	}
}

// A statement without parameters keeps the plan that a session made while the log was empty, and every instance repeats it each two
// seconds.
func TestTheOutboxIsReadByTheKeyOfTheLog(t *testing.T) {
	tier.AtSize(t)
	conn, err := migrated(t).Acquire(t.Context())
	must.OK(t, err)
	defer conn.Release()
	if plan := localtest.Plan(t, conn.Conn(), outboxSQL); !localtest.LogByKey(plan) {
		t.Errorf("the log is not read by its key:\n%s", plan)
	}
}

func TestRequiredStandbys(t *testing.T) {
	for names, want := range map[string]int{"": 0, "a": 1, "*": 1, "a, b": 1, "2 (a, b)": 2, "FIRST 2 (a, b, c)": 2, "any 3(*)": 3,
		`"2" , b`: 1} {
		if got := requiredStandbys(names); got != want {
			t.Errorf("%q requires %d, want %d", names, got, want)
		}
	}
}
