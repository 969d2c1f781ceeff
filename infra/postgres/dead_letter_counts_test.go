package postgres

import (
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/meterplex/meterplex/migrations"
)

// Migration 0045 counts the dead letters that are there, also if it is applied again after an interruption, and each statement from then on.
func TestTheMigrationCountsTheDeadLettersThatAreThere(t *testing.T) {
	t.Parallel()
	_, db, letGo := before(t, 44, "log_heads")
	letGo()
	exec := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := db.Exec(sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(n int, status string) {
		t.Helper()
		if _, err := db.Exec(`INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason, producer_event_id, feature, source_position, topic, retry_count, first_failed_at, last_failed_at)
 SELECT 1, ('019ec0de-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 0, '019ec0de-0000-7000-8000-000000000000', 'VALIDATION', $2, 'c', 'r', 'e', 'f', n, 'usage.raw', 0, 'epoch'::timestamptz + n * interval '150 s', now()
 FROM generate_series(1, $1::int) n ON CONFLICT (generation, id) DO UPDATE SET status = excluded.status`, n, status); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(want string) {
		t.Helper()
		var got string
		if err := db.QueryRow(`SELECT string_agg(concat_ws(' ', slot, failed, retrying, resolved, discarded), ', ' ORDER BY slot) FROM dead_letter_counts`).Scan(&got); err != nil || got != want {
			t.Errorf("counted are %q, want %q: %v", got, want, err)
		}
	}
	// The owner sees the rows for the test's statements, and not for the migration.
	exec(`ALTER TABLE dead_letter_events NO FORCE ROW LEVEL SECURITY`)
	write(4, "FAILED")
	exec(`ALTER TABLE dead_letter_events FORCE ROW LEVEL SECURITY`)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, markedFiles{migrations.FS})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := provider.UpTo(t.Context(), 45); err != nil {
			t.Fatal(err)
		}
		exec(`DELETE FROM goose_db_version WHERE version_id = 45`, `ALTER TABLE dead_letter_counts NO FORCE ROW LEVEL SECURITY`)
		counted("-1 4 0 0 0, 0 1 0 0 0, 1 2 0 0 0, 2 1 0 0 0")
	}
	exec(`ALTER TABLE dead_letter_events NO FORCE ROW LEVEL SECURITY`)
	write(2, "DISCARDED")
	counted("-1 2 0 0 2, 0 0 0 0 1, 1 1 0 0 1, 2 1 0 0 0")
	exec(`DELETE FROM dead_letter_events WHERE status = 'DISCARDED'`)
	counted("-1 2 0 0 0, 0 0 0 0 0, 1 1 0 0 0, 2 1 0 0 0")
}
