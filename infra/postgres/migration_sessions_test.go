package postgres

import (
	"log/slog"
	"testing/fstest"
)

// unbounded migrates for longer than the settings of the login allow its statements and transactions. Those of the
// address bound it.
func unbounded(l *loginTrial) {
	l.create("$W", `CREATE ROLE $W LOGIN PASSWORD 'p'`, `ALTER ROLE $W SET statement_timeout = '300ms'`)
	if l.major >= 17 {
		l.exec(`ALTER ROLE $W SET transaction_timeout = '300ms'`)
	}
	const cancelled, sleep = "57014", "-- +goose Up\nSELECT pg_sleep(0.7);"
	files := fstest.MapFS{"0001_long.sql": {Data: []byte(sleep)}}
	if n, err := migrateURL(l.Context(), l.url("$W"), files, slog.Default(), 1); n != 1 || err != nil {
		l.Errorf("%d applied, %v", n, err)
	}
	l.exec(`ALTER ROLE $W RESET ALL`)
	files["0002_long.sql"] = &fstest.MapFile{Data: []byte(sleep)}
	for _, parameter := range []string{"statement_timeout=300", "options=-c%20statement_timeout%3D300"} {
		if _, err := migrateURL(l.Context(), l.url("$W")+"&"+parameter, files, slog.Default(), 1); SQLState(err) != cancelled {
			l.Errorf("with %s: %v", parameter, err)
		}
	}
}
