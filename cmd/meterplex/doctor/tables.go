package doctor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/infra/postgres"
)

func serverVersion(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var number int
	var version string
	if err := db.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version')`).Scan(&number,
		&version); err != nil {
		return "", "", err
	}
	return supported(number), "PostgreSQL " + version, nil
}

// supported returns the state of a version by its number, e.g. 150008.
func supported(number int) State {
	switch major := number / 10000; {
	case major < 15:
		return Failure
	case major > 18:
		return Warning
	}
	return OK
}

func checksums(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var on bool
	if err := db.QueryRow(ctx, `SELECT current_setting('data_checksums') = 'on'`).Scan(&on); err != nil {
		return "", "", err
	}
	return checksumState(on)
}

func checksumState(on bool) (State, string, error) {
	if on {
		return OK, "pages have checksums", nil
	}
	return Warning, "pages have no checksums", nil
}

func collation(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var made, now string
	if err := db.QueryRow(ctx, `SELECT coalesce(datcollversion, ''), coalesce(pg_database_collation_actual_version(oid), '')
		FROM pg_database WHERE datname = current_database()`).Scan(&made, &now); err != nil {
		return "", "", err
	}
	return collationState(made, now)
}

// collationState compares the version of the collation that a database was made with and that of the server; "": no version, e.g. of the
// collation C.
func collationState(made, now string) (State, string, error) {
	switch {
	case made == now:
		return OK, "the collation is the one that the database was made with", nil
	case made == "":
		return Warning, fmt.Sprintf("the database has no collation version, as after pg_upgrade from PostgreSQL 14, and the server has "+
			"%s: an earlier change of the collation cannot be seen", now), nil
	}
	return Failure, fmt.Sprintf("the database was made with collation version %s, and the server has %s: its indexes may be out of order",
		made, cmp.Or(now, "none")), nil
}

func connections(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	c, err := postgres.CountConnections(ctx, db)
	if err != nil {
		return "", "", err
	}
	finding := fmt.Sprintf("%d of %d connections are free; an instance opens up to %d", c.Free(), c.Limit, s.Connections)
	switch {
	case s.TooFew != nil:
		return Failure, s.TooFew.Error(), nil
	case c.Free() < 5:
		return Failure, finding, nil
	case c.Free() < s.Connections:
		return Warning, finding, nil
	}
	return OK, finding, nil
}

func longTransactions(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var pid int
	var seconds float64
	if err := db.QueryRow(ctx, `SELECT coalesce(max(pid) FILTER (WHERE at = 1), 0), coalesce(max(seconds), 0)::float8
 FROM (SELECT pid, extract(epoch FROM clock_timestamp() - xact_start) AS seconds, row_number() OVER (ORDER BY xact_start) AS at
  FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
  AND backend_type = 'client backend') t`).Scan(&pid, &seconds); err != nil {
		return "", "", err
	}
	age := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	if pid == 0 {
		return OK, "no transaction is open", nil
	}
	return statusOf(age, transactionWarning, transactionFailure), fmt.Sprintf("the oldest transaction began %s ago, in process %d", age,
		pid), nil
}

func preparedTransactions(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var n int
	var first string
	if err := db.QueryRow(ctx, `SELECT count(*), coalesce(min(gid), '') FROM pg_prepared_xacts WHERE database = current_database()`).
		Scan(&n, &first); err != nil || n == 0 {
		return OK, "no prepared transaction", err
	}
	return Warning, fmt.Sprintf("%d prepared transactions, e.g. %s: they are not the service's", n, first), nil
}

func autovacuum(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var on bool
	if err := db.QueryRow(ctx, `SELECT current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on'`).
		Scan(&on); err != nil {
		return "", "", err
	}
	if !on {
		return Failure, "autovacuum is off", nil
	}
	n, names, err := count(ctx, s, `SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = (SELECT relnamespace
		FROM pg_class WHERE oid = to_regclass('log_heads'))
 AND EXISTS (SELECT FROM unnest(reloptions) o WHERE o IN ('autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0'))`)
	if err != nil || n == 0 {
		return OK, "autovacuum is on for all tables", err
	}
	return Warning, "autovacuum is off for " + names, nil
}

func deadRows(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT relname || ' (' || n_dead_tup || ')' FROM pg_stat_user_tables WHERE n_dead_tup > $1
		AND n_dead_tup > n_live_tup / 5`, deadRowsLeast)
	if err != nil || n == 0 {
		return OK, "no table has many dead rows", err
	}
	return Warning, fmt.Sprintf("%d tables have more than a fifth of dead rows: %s", n, names), nil
}

func freeze(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var age int64
	if err := db.QueryRow(ctx, `SELECT greatest(max(age(datfrozenxid)), max(mxid_age(datminmxid)))::bigint FROM pg_database`).
		Scan(&age); err != nil {
		return "", "", err
	}
	return frozen(age), fmt.Sprintf("the oldest row that is not frozen is %d transactions old; the server stops at about 2.1 billion", age),
		nil
}

// frozen returns the state of the age of the oldest row that is not frozen.
func frozen(age int64) State {
	switch {
	case age > frozenAge/2*3:
		return Failure
	case age > frozenAge:
		return Warning
	}
	return OK
}

func invalidIndexes(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE NOT i.indisvalid
 AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid)`)
	if err != nil || n == 0 {
		return OK, "all indexes are valid", err
	}
	return Failure, fmt.Sprintf("%d indexes are invalid: %s", n, names), nil
}

func schemaVersion(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	if s.MigrateURL != "" { // the table of migrations belongs to its login
		if db, err = session(ctx, s.MigrateURL, ""); err != nil {
			return "", "", err
		}
		defer db.Close(context.WithoutCancel(ctx))
	}
	has, knows, err := postgres.SchemaVersion(ctx, db)
	if err != nil {
		return "", "", err
	}
	finding := fmt.Sprintf("the database has migration %d, this binary knows %d", has, knows)
	switch {
	case has < knows:
		return Failure, finding, nil
	case has > knows:
		return Warning, finding, nil
	}
	return OK, finding, nil
}
