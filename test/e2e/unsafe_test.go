package e2e

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// P1, P6: a database that may lose commits and a login that bypasses all rules: the service reports
// both and does not start until the configuration allows them.
func TestP6_TheServiceRefusesAnUnsafeDatabase(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newEmptyDeployment(t)
	w.pipe = "postgres"
	for _, statement := range []string{
		`CREATE SCHEMA stub`, `GRANT USAGE ON SCHEMA stub TO PUBLIC`,
		`CREATE VIEW stub.pg_settings AS SELECT name, CASE name WHEN 'fsync' THEN 'off' ELSE setting END AS setting
			FROM pg_catalog.pg_settings`,
		`GRANT SELECT ON stub.pg_settings TO PUBLIC`,
		`ALTER DATABASE ` + pgx.Identifier{w.sql.Config().ConnConfig.Database}.Sanitize() + ` SET search_path = public, stub, pg_catalog`,
	} {
		if _, err := w.sql.Exec(t.Context(), statement); err != nil {
			t.Fatal(statement, err)
		}
	}
	w.db = localtest.SuperuserURL(t, w.db)
	root, err := url.Parse(w.db)
	must.OK(t, err)
	for _, allowed := range []string{"", "superuser", "fsync"} {
		at := w.prepare("", "METERPLEX_ALLOW_UNSAFE="+allowed)
		err := at.tryStart()
		if err == nil {
			t.Fatalf("with METERPLEX_ALLOW_UNSAFE=%q it started", allowed)
		}
		if !strings.Contains(err.Error(), "exit status 2") {
			t.Errorf("the exit differs from docs/reference/unsafe-settings.md: %v", err)
		}
		for word, seen := range map[string]string{
			"fsync":     "fsync: fsync is off; events that were answered accepted can be lost in a crash",
			"superuser": "superuser: the role postgres is a superuser; the service could alter or delete recorded events",
		} {
			if strings.Contains(err.Error(), seen) == (word == allowed) {
				t.Errorf("allowed %q: %v", allowed, err)
			}
		}
		if password, _ := root.User.Password(); strings.Contains(err.Error(), password) {
			t.Errorf("the refusal contains the password: %v", err)
		}
	}
	var tables int
	if err := w.sql.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(&tables); err != nil ||
		tables > 0 {
		t.Errorf("the refused service created %d tables, %v", tables, err)
	}
	at := w.serve("", "METERPLEX_ALLOW_UNSAFE=fsync,superuser")
	w.ask(w.operator, http.MethodGet, at, "/readyz", nil, nil, http.StatusOK)
	if !at.logContains("unsafe setting allowed") {
		t.Error("the log does not report the unsafe settings")
	}
	at.stop()
	table := "pipe_" + strings.ReplaceAll(w.prefix, ".", "_") + "usage_commands" // the pipe must be durable, too
	w.run(`ALTER TABLE ` + table + ` SET UNLOGGED`)
	if err := at.tryStart(); err == nil || !strings.Contains(err.Error(), "unlogged: the table "+table+" is unlogged") {
		t.Fatalf("it started, or failed with %v", err)
	}
}
