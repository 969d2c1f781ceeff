package localtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/local/localtest"
)

// The schema is made once; each copy has a log of its own.
func TestCopiesOfTheTemplateHaveDistinctLogs(t *testing.T) {
	calls, logs := 0, map[string]bool{}
	for range 2 {
		url := localtest.Migrated(t, func(ctx context.Context, url string) (int, error) {
			calls++
			return 1, query(ctx, url, `CREATE TABLE log_identity AS SELECT gen_random_uuid() AS log_id`)
		})
		var log string
		if err := query(t.Context(), url, `SELECT log_id::text FROM log_identity`, &log); err != nil {
			t.Fatal(err)
		}
		logs[log] = true
	}
	if calls != 1 || len(logs) != 2 {
		t.Errorf("the schema was made %d times, for the logs %v", calls, logs)
	}
}

// query runs a statement in a session of its own, and reads its row into the destinations.
func query(ctx context.Context, url, statement string, into ...any) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if len(into) == 0 {
		_, err = conn.Exec(ctx, statement)
		return err
	}
	return conn.QueryRow(ctx, statement).Scan(into...)
}

// A session outlives a context that ends in the middle of its statement.
func TestSessionsAreReused(t *testing.T) {
	config, err := pgxpool.ParseConfig(localtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := localtest.KeepSessions(config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	pid := func() (n int) {
		if err := pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := pid()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _ = pool.Exec(ctx, `SELECT pg_sleep(0.3)`) // with or without an error
	if after := pid(); after != before || ctx.Err() == nil {
		t.Errorf("session %d became %d, %v", before, after, ctx.Err())
	}
}
