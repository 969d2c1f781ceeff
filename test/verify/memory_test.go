package verify

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/verify"
)

// A partition is read in its order by the key: the server sorts no copy of it in temporary files, for which there may be no room.
func TestAPartitionIsNotSortedOnDisk(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	conn, err := pgx.Connect(t.Context(), url)
	must.OK(t, err)
	defer conn.Close(t.Context())
	for _, sql := range []string{
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
			topic, subject, dedupe_key, body)
 SELECT n, n - 1, now(), now(), gen_random_uuid(), gen_random_uuid(), 0, 1, 3, 1, 1, n::text, '{}' FROM generate_series(1, 20000) n`,
		`VACUUM (ANALYZE) event_log_rows`,
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''256kB''', current_database()); END $$`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		must.OK(t, err)
	}
	_, err = verify.Run(t.Context(), verify.Config{DatabaseURL: url, NoTopics: "not read", Partitions: []int16{3}, Now: time.Now,
		Progress: func(string) {}})
	must.OK(t, err)
	for sessions, files := 1, 0; sessions > 0; { // a session reports its files when it ends
		must.OK(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.datid
			AND backend_type = 'client backend' AND pid <> pg_backend_pid()), temp_files
 FROM pg_stat_database d WHERE datname = current_database()`).Scan(&sessions, &files))
		if sessions == 0 && files > 0 {
			t.Errorf("the server wrote %d temporary files", files)
		}
	}
}
