package postgres

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/migrations"
)

// before makes a migrated database, and a session that reads a table until the test ends it.
func before(t *testing.T, table string) (url string, db *sql.DB, letGo func()) {
	t.Helper()
	url = localtest.Migrated(t, Migrate)
	db, err := OwnerDB(url)
	must.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	reader, err := db.BeginTx(context.Background(), nil)
	must.OK(t, err)
	if _, err := reader.Exec(`LOCK TABLE ` + table + ` IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	letGo = func() { _ = reader.Rollback() }
	t.Cleanup(letGo)
	return url, db, letGo
}

// A migration that waits for a long read keeps other reads waiting for 2 s at most,
// and comes again by itself.
func TestMigrationBehindALongReadStopsNoReaders(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	url, db, letGo := before(t, "withheld_records")
	done := make(chan error, 1)
	applied := 0
	go func() {
		n, err := migrateURL(t.Context(), url, laterRelease(`ALTER TABLE withheld_records ADD COLUMN next int;`), slog.Default(),
			migrationTries)
		applied = n
		done <- err
	}()
	longest := time.Duration(0)
	// On a busy machine a read may come late to several of the migration's tries.
	for start := time.Now(); time.Since(start) < 4*time.Second ||
		longest < 200*time.Millisecond && time.Since(start) < time.Minute; time.Sleep(20 * time.Millisecond) {
		began := time.Now()
		var n int
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		err := db.QueryRowContext(ctx, `SELECT count(*) FROM withheld_records`).Scan(&n)
		cancel()
		must.OK(t, err)
		longest = max(longest, time.Since(began))
	}
	if longest < 200*time.Millisecond || longest > 3500*time.Millisecond {
		t.Errorf("a read waited %v behind the migration, which gives up after 2 s", longest)
	}
	letGo()
	if err := <-done; err != nil || applied == 0 {
		t.Fatalf("%d migrations were applied: %v", applied, err)
	}
}

// Every migration gives up soon, with or without a lock_timeout of its own, and well
// before the service refuses requests that wait behind it. Each fifth try waits for longer
// than the server's deadlock_timeout, and still gives up before the service.
func TestEveryMigrationGivesUpItsLockSoon(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	url, db, letGo := before(t, "log_heads")
	var told strings.Builder
	must.OK(t, GrantRoles(t.Context(), Logins{Migrates: url, Works: url}, slog.Default()))
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE limits (n serial, ms int)`); err != nil {
		t.Fatal(err)
	}
	next := laterRelease(`-- +goose NO TRANSACTION
SET lock_timeout = 0; RESET lock_timeout;
INSERT INTO limits (ms) SELECT setting::int FROM pg_settings WHERE name = 'lock_timeout';
ALTER TABLE log_heads ADD COLUMN next int;`)
	bounded, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	_, err := migrateURL(bounded, url, next, slog.New(slog.NewTextHandler(&told, nil)), 6)
	if SQLState(err) != LockNotAvailable {
		t.Errorf("behind a lock that it does not get: %v", err)
	}
	letGo()
	if n, err := migrateURL(t.Context(), url, next, slog.New(slog.NewTextHandler(&told, nil)), 1); n != 1 || err != nil {
		t.Errorf("%d applied, %v", n, err)
	}
	var waits []int
	var deadlocks, service int
	must.OK(t, db.QueryRowContext(t.Context(), `SELECT setting::int FROM pg_settings WHERE name = 'deadlock_timeout'`).Scan(&deadlocks))
	pool, err := Open(t.Context(), Config{URL: url})
	must.OK(t, err)
	defer pool.Close()
	owner, err := pgx.Connect(t.Context(), url)
	must.OK(t, err)
	defer owner.Close(context.Background())
	if err := owner.QueryRow(t.Context(), `SELECT array_agg(ms ORDER BY n) FROM limits`).Scan(&waits); err != nil || len(waits) != 7 {
		t.Fatal(waits, err)
	}
	must.OK(t, pool.QueryRow(t.Context(), `SELECT setting::int FROM pg_settings WHERE name = 'lock_timeout'`).Scan(&service))
	for n, ms := range waits {
		if long := n == 4; ms == 0 || !long && 3*ms > service || long && (ms <= deadlocks || ms >= service) {
			t.Errorf("try %d of a migration waits %d ms for each of its tables, and a request %d ms behind it; an autovacuum gives way "+
				"after %d ms", n+1, ms, service, deadlocks)
		}
	}
}

// migrateURL migrates with the migrations of another release.
func migrateURL(ctx context.Context, url string, files fs.FS, logger *slog.Logger, tries int) (int, error) {
	db, err := migrationDB(url)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return migrate(ctx, db, files, logger, tries)
}

// laterRelease is a release with one migration more.
func laterRelease(sql string) fs.FS {
	files := fstest.MapFS{"9001_next.sql": {Data: []byte("-- +goose Up\n" + sql)}}
	names, _ := fs.Glob(migrations.FS, "*.sql")
	for _, name := range names {
		raw, _ := migrations.FS.ReadFile(name)
		files[name] = &fstest.MapFile{Data: raw}
	}
	return files
}

// A migration and a transaction of the service wait for each other: whichever of them
// the server ends, the migration is there afterwards.
func TestADeadlockedMigrationIsRetried(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	// The server ends the first session that it sees waiting for a second: the migration,
	// unless the test itself takes as long to complete the deadlock.
	for tries := 1; !deadlocked(t); tries++ {
		if tries == 10 {
			t.Fatal("the migration never was the one that the server ended")
		}
	}
}

// deadlocked makes a migration and a transaction of the service wait for each other, and
// reports whether the server ended the migration.
func deadlocked(t *testing.T) bool {
	t.Helper()
	url, db, letGo := before(t, "log_heads")
	letGo()
	service, err := db.BeginTx(t.Context(), nil)
	must.OK(t, err)
	defer service.Rollback()
	lock := func(table string) error {
		_, err := service.ExecContext(t.Context(), `LOCK TABLE `+table+` IN ROW EXCLUSIVE MODE`)
		return err
	}
	must.OK(t, lock("log_heads"))
	var told strings.Builder
	done := make(chan error, 1)
	go func() {
		_, err := migrateURL(t.Context(), url,
			laterRelease(
				`SET LOCAL lock_timeout = 0; ALTER TABLE event_log ADD COLUMN next int; ALTER TABLE log_heads ADD COLUMN next int;`),
			slog.New(slog.NewTextHandler(&told, nil)), 30)
		done <- err
	}()
	for waits, end := 0, time.Now().Add(30*time.Second); waits == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
 AND application_name = 'meterplex migrate' AND wait_event_type = 'Lock'`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	locked := lock("event_log")
	ended := SQLState(locked) == deadlock
	if err := service.Commit(); !ended && errors.Join(locked, err) != nil {
		t.Errorf("the service's transaction: %v, %v", locked, err)
	}
	if err := <-done; err != nil || !ended && !strings.Contains(told.String(), deadlock) {
		t.Errorf("the migration: %v, told %q", err, told.String())
	}
	return !ended
}

// A binary that lacks a required migration gets an error, at its start and while it
// runs. A binary that lacks one that only adds may run.
func TestABinaryReportsUnsupportedMigrations(t *testing.T) {
	t.Parallel()
	pool, url := openPool(t)
	var told strings.Builder
	logger := slog.New(slog.NewTextHandler(&told, nil))
	if n, err := migrateURL(t.Context(), url, laterRelease(`CREATE TABLE next ();`), logger, 1); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := MigrateAs(t.Context(), Logins{Migrates: url, Works: url}, logger); n != 0 || err != nil ||
		!strings.Contains(told.String(), "database=9001 binary=") {
		t.Errorf("a migration that only adds: %d applied, %v, told %q", n, err, told.String())
	}
	ended := make(chan error, 1)
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { ended <- WatchRequired(watching, pool, 5*time.Millisecond) }()
	select {
	case err := <-ended:
		t.Errorf("it ended beside what only adds: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	owner, err := OwnerDB(url)
	must.OK(t, err)
	defer owner.Close()
	if _, err := owner.Exec(`INSERT INTO required_migrations VALUES (9001, 'they drop what is next')`); err != nil {
		t.Fatal(err)
	}
	_, start := MigrateAs(t.Context(), Logins{Migrates: url, Works: url}, logger)
	watched := errors.New("whoever runs goes on")
	select {
	case watched = <-ended:
	case <-time.After(2 * time.Minute):
	}
	for _, err := range []error{watched, start} {
		var beyond *Beyond
		if !errors.As(err, &beyond) || beyond.Needs != 9001 || beyond.Holds != newestMigration(t) ||
			beyond.Because != "they drop what is next" {
			t.Errorf("in the log that requires it: %v", err)
		}
	}
	if n, err := migrateURL(t.Context(), url, laterRelease(`CREATE TABLE next ();`), logger, 1); n != 0 || err != nil {
		t.Errorf("who knows it: %d applied, %v", n, err)
	}
}

// WatchRequired keeps waiting while the database does not answer.
func TestAnOutageIsNoRequirement(t *testing.T) {
	t.Parallel()
	away, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nothing?connect_timeout=1")
	must.OK(t, err)
	defer away.Close()
	soon, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if err := WatchRequired(soon, away, 5*time.Millisecond); err != nil || soon.Err() == nil {
		t.Errorf("it ended without a database: %v", err)
	}
}

// Each migration after those of 0.1.0 declares which releases may run beside it, in the database or in a comment, and
// creates no index in a way that blocks writers.
func TestMigrationsStateTheirCompatibility(t *testing.T) {
	const first = 9
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(names) < first {
		t.Fatal(names, err)
	}
	for _, name := range names[first:] {
		raw, err := migrations.FS.ReadFile(name)
		must.OK(t, err)
		if fault := migrationFault(string(raw)); fault != "" {
			t.Errorf("%s %s", name, fault)
		}
	}
	for sql, fault := range map[string]string{
		"ALTER TABLE a ADD COLUMN b int;": "says neither",
		"-- Older instances go on beside it: they name their columns.\nALTER TABLE a ADD COLUMN b int;": "",
		"ALTER TABLE a DROP COLUMN b;\nINSERT INTO required_migrations VALUES (13, 'they read b');":     "",
		"-- Older instances go on beside it: no column.\nCREATE UNIQUE INDEX a ON b (c);":               "makes an index",
		"-- Older instances go on beside it: no column.\nUPDATE tenants SET name = 'x';":                "changes rows of tenants",
		"-- Older instances go on beside it: no column.\nALTER TABLE tenants NO FORCE ROW LEVEL SECURITY;\n" +
			"UPDATE tenants SET name = 'x';\nALTER TABLE tenants FORCE ROW LEVEL SECURITY;": "",
		"-- +goose NO TRANSACTION\n-- Older instances go on beside it: none.\nCREATE INDEX CONCURRENTLY a ON b (c)": "does not drop",
		"-- +goose NO TRANSACTION\n-- +goose Up\n-- Older instances go on beside it: none.\nALTER TABLE a NO FORCE ROW LEVEL " +
			"SECURITY;\nINSERT INTO b SELECT FROM a;\n" +
			"ALTER TABLE a FORCE ROW LEVEL SECURITY;": "takes row level security off a",
		"-- +goose NO TRANSACTION\n-- +goose Up\n-- Older instances go on beside it: none.\n" + statementBegin +
			"\nDO $$ BEGIN\n  ALTER TABLE a NO FORCE ROW LEVEL SECURITY;\n" +
			"  INSERT INTO b SELECT FROM a;\n  ALTER TABLE a FORCE ROW LEVEL SECURITY;\nEND $$;\n" + statementEnd: "",
	} {
		if got := migrationFault(sql); !strings.HasPrefix(got, fault) || fault == "" && got != "" {
			t.Errorf("%s\nis classified as %q", sql, got)
		}
	}
}

// migrationFault returns the fault of a migration, or "".
func migrationFault(sql string) string {
	made := regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?(?:IF NOT EXISTS )?(\w+) ON (\w+)`)
	for _, m := range made.FindAllStringSubmatch(sql, -1) {
		switch {
		case strings.Contains(sql, "CREATE TABLE "+m[3]+" "):
		case m[1] == "":
			return "makes an index that stops who writes: CONCURRENTLY, with NO TRANSACTION"
		case !strings.Contains(sql, "DROP INDEX CONCURRENTLY IF EXISTS "+m[2]):
			return "does not drop first what an end in the middle leaves of its index"
		}
	}
	// The owner, bound by row level security, may not see the rows: docs/how-to/database-logins.md.
	changed := regexp.MustCompile(
		`(?m)^\s*(?:UPDATE|DELETE FROM) (?:ONLY )?(event_log|tenants|api_keys|subscriptions|subscription_history|idempotency_answers|usage_aggregates|entitlement_grants|entitlement_usage|dead_letter_events|projection_pointers|projection_generations)\b`)
	for _, m := range changed.FindAllStringSubmatch(sql, -1) {
		if !strings.Contains(sql, "ALTER TABLE "+m[1]+" NO FORCE ROW LEVEL SECURITY") ||
			!strings.Contains(sql, "ALTER TABLE "+m[1]+" FORCE ROW LEVEL SECURITY") {
			return "changes rows of " + m[1] + " that its owner may not see: NO FORCE ROW LEVEL SECURITY before, FORCE after"
		}
	}
	if table := leftUnguarded(sql); table != "" {
		return "takes row level security off " + table +
			", which stays so if it ends in the middle: FORCE in the same block, or a policy of the owner"
	}
	if strings.Contains(sql, "INSERT INTO required_migrations") || strings.Contains(sql, "\n-- Older instances go on beside it: ") ||
		strings.HasPrefix(sql, "-- Older instances go on beside it: ") {
		return ""
	}
	return "says neither by a row in required_migrations that it is required, nor why older instances go on beside it"
}

// leftUnguarded returns a table whose row level security a statement without a transaction leaves unforced, or "".
func leftUnguarded(sql string) string {
	if !strings.Contains(sql, "-- +goose NO TRANSACTION") {
		return ""
	}
	off := regexp.MustCompile(`(?i)ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:ONLY\s+)?(\S+)\s+(?:NO\s+FORCE|DISABLE)\s+ROW\s+LEVEL\s+SECURITY`)
	for statement := range strings.SplitSeq(markStatements(sql), statementBegin) {
		for _, m := range off.FindAllStringSubmatchIndex(statement, -1) {
			table := statement[m[2]:m[3]]
			if !strings.Contains(statement[m[1]:], "ALTER TABLE "+table+" FORCE ROW LEVEL SECURITY") {
				return table
			}
		}
	}
	return ""
}

// A lock that is never granted ends a migration's tries.
func TestAMigrationThatNeverGetsItsLockReportsIt(t *testing.T) {
	t.Parallel()
	url, _, _ := before(t, "withheld_records")
	var told strings.Builder
	n, err := migrateURL(t.Context(), url, laterRelease(`ALTER TABLE withheld_records ADD COLUMN next int;`),
		slog.New(slog.NewTextHandler(&told, nil)), 2)
	if SQLState(err) != LockNotAvailable || n != 0 || strings.Count(told.String(), "level=WARN") != 1 {
		t.Errorf("%d applied, %v, told %q", n, err, told.String())
	}
}

// newestMigration is the number of the newest migration.
func newestMigration(t *testing.T) int64 {
	t.Helper()
	n, err := newest(migrations.FS)
	must.OK(t, err)
	return n
}

// TestP6_CreateRoleIsReportedBefore16: there the login of the service could grant itself pg_execute_server_program.
func TestP6_CreateRoleIsReportedBefore16(t *testing.T) {
	database := localtest.Migrated(t, Migrate)
	other, err := url.Parse(database)
	must.OK(t, err)
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	must.OK(t, err)
	defer root.Close(context.Background())
	var risky bool
	must.OK(t, root.QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int < 160000`).Scan(&risky))
	login := "safe_" + root.Config().Database
	must.Exec(t, root, `CREATE ROLE `+login+` LOGIN PASSWORD 'p'`)
	defer func() { must.Exec(t, root, `DROP ROLE `+login) }()
	other.User = url.UserPassword(login, "p")
	for _, c := range []struct {
		url  string
		want bool
	}{{database, risky}, {other.String(), false}, {localtest.SuperuserURL(t, database), false}} {
		list, err := FindDangers(t.Context(), c.url)
		must.OK(t, err)
		if found := slices.ContainsFunc(list, func(d Danger) bool { return d.Name == createRole && d.Warns }); found != c.want {
			t.Errorf("before 16: %v, found: %v", risky, list)
		}
	}
}
