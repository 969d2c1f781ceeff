package postgres

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// dangersOf finds the dangers of a database.
func dangersOf(t *testing.T, database string) (found []string) {
	t.Helper()
	list, err := FindDangers(t.Context(), database)
	must.OK(t, err)
	for _, d := range list {
		if d.Warns && Refusal([]Danger{d}, nil) == nil { // the tests' login creates the roles
			continue
		}
		if d.Found == "" || d.Why == "" {
			t.Errorf("%+v says too little", d)
		}
		if refused := Refusal(list, nil); refused == nil || !strings.Contains(refused.Error(), d.Found+"; "+d.Why) {
			t.Errorf("%s is not refused: %v", d.Name, refused)
		}
		found = append(found, d.Name)
	}
	return slices.Compact(found)
}

// The test makes one database unsafe in every possible way; FindDangers finds each.
func TestUnsafeDatabasesAreFound(t *testing.T) {
	database := localtest.Database(t)
	if found := dangersOf(t, database); len(found) != 0 {
		t.Errorf("before the first migration: %v", found)
	}
	if _, err := Migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	if found := dangersOf(t, database); len(found) != 0 {
		t.Errorf("a fresh database: %v", found)
	}
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	must.OK(t, err)
	defer root.Close(context.Background())
	for _, c := range []struct{ make, undo, want string }{
		{`ALTER TABLE plans SET UNLOGGED`, `ALTER TABLE plans SET LOGGED`, "unlogged"},
		{`GRANT UPDATE ON event_log_rows TO meterplex_worker`, `REVOKE UPDATE ON event_log_rows FROM meterplex_worker`, "grants"},
		{`GRANT TRUNCATE ON event_log TO meterplex_worker`, `REVOKE TRUNCATE ON event_log FROM meterplex_worker`, "grants"},
		{`GRANT DELETE ON event_log TO PUBLIC`, `REVOKE DELETE ON event_log FROM PUBLIC`, "grants"},
		{`GRANT UPDATE (body) ON event_log TO meterplex_worker`, `REVOKE UPDATE (body) ON event_log FROM meterplex_worker`, "grants"},
		{`GRANT UPDATE (hash) ON event_log_rows TO PUBLIC`, `REVOKE UPDATE (hash) ON event_log_rows FROM PUBLIC`, "grants"},
		{`ALTER TABLE event_log OWNER TO meterplex_worker`, `ALTER TABLE event_log OWNER TO meterplex`, "owner"},
		{`ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY`, `ALTER TABLE tenants FORCE ROW LEVEL SECURITY`, "row_security"},
		{`ALTER TABLE usage_aggregates NO FORCE ROW LEVEL SECURITY`, `ALTER TABLE usage_aggregates FORCE ROW LEVEL SECURITY`,
			"row_security"},
		{`ALTER TABLE event_log DISABLE ROW LEVEL SECURITY`, `ALTER TABLE event_log ENABLE ROW LEVEL SECURITY`, "row_security"},
	} {
		must.Exec(t, root, c.make)
		if found := strings.Join(dangersOf(t, database), " "); found != c.want {
			t.Errorf("%s: %q", c.make, found)
		}
		must.Exec(t, root, c.undo)
	}
	if found := dangersOf(t, database); len(found) != 0 {
		t.Errorf("all fixed: %v", found)
	}
}

// The tables of another application are not checked, even if they have our owner.
func TestOnlyTheServicesTablesAreChecked(t *testing.T) {
	database := localtest.Migrated(t, Migrate)
	conn, err := pgx.Connect(t.Context(), database)
	must.OK(t, err)
	defer conn.Close(context.Background())
	for _, statement := range []string{
		`CREATE UNLOGGED TABLE sessions (tenant_id int)`, `GRANT SELECT ON sessions TO PUBLIC`,
		`CREATE TABLE invoices (tenant_id int)`, `GRANT SELECT ON invoices TO PUBLIC`,
	} {
		must.Exec(t, conn, statement)
	}
	if found := dangersOf(t, database); len(found) != 0 {
		t.Errorf("tables of another application: %v", found)
	}
	rows, err := conn.Query(t.Context(), `SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
 AND relname NOT IN ('sessions', 'invoices', 'goose_db_version') ORDER BY relname`)
	must.OK(t, err)
	made, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must.OK(t, err)
	known, err := ourTables()
	if slices.Sort(known); err != nil || !slices.Equal(known, made) {
		t.Errorf("looked at are %v, %v; the migrations made %v", known, err, made)
	}
}

// A role that may become another one has its rights, even without inheritance.
func TestReachableRolesAreFound(t *testing.T) {
	database := localtest.Migrated(t, Migrate)
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	must.OK(t, err)
	defer root.Close(context.Background())
	worker, between, other := "w_"+root.Config().Database, "b_"+root.Config().Database, "o_"+root.Config().Database
	run := func(statement string) {
		t.Helper()
		statement = strings.NewReplacer("$W", pgx.Identifier{worker}.Sanitize(), "$B", pgx.Identifier{between}.Sanitize(), "$O",
			pgx.Identifier{other}.Sanitize()).Replace(statement)
		if _, err := root.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Fatal(statement, err)
		}
	}
	run(`CREATE ROLE $W NOLOGIN NOINHERIT`)
	run(`CREATE ROLE $B NOLOGIN NOINHERIT`)
	run(`CREATE ROLE $O NOLOGIN NOINHERIT`)
	defer run(`DROP ROLE $W, $B, $O`)
	run(`GRANT $B TO $W`)
	run(`GRANT $O TO $B`)
	for _, c := range []struct{ make, undo, want string }{
		{`ALTER ROLE $O SUPERUSER`, `ALTER ROLE $O NOSUPERUSER`, "superuser: the role $W can become the superuser $O"},
		{`ALTER ROLE $O BYPASSRLS`, `ALTER ROLE $O NOBYPASSRLS`, "bypassrls: the role $W can become $O, which has BYPASSRLS"},
		{`GRANT DELETE ON event_log TO $O`, `REVOKE DELETE ON event_log FROM $O`, "grants: the role $W may DELETE event_log as $O"},
		{`SELECT 1`, `SELECT 1`, ""},
	} {
		run(c.make)
		list, err := findDangers(t.Context(), database, worker, TenantRole)
		must.OK(t, err)
		var found []string
		for _, d := range list {
			if !d.Warns {
				found = append(found, d.Name+": "+d.Found)
			}
		}
		want := strings.NewReplacer("$W", worker, "$O", other).Replace(c.want)
		if got := strings.Join(found, "; "); got != want {
			t.Errorf("%s: %q, want %q", c.make, got, want)
		}
		run(c.undo)
	}
}

func TestASuperusersLoginIsFound(t *testing.T) {
	database := localtest.SuperuserURL(t, localtest.Database(t))
	if found := dangersOf(t, database); !slices.Equal(found, []string{"superuser"}) {
		t.Errorf("%v", found)
	}
	list, _ := FindDangers(t.Context(), database)
	if err := Refusal(list, []string{"superuser"}); err != nil {
		t.Errorf("allowed, and refused: %v", err)
	}
	if err := Refusal(list, []string{"fsync"}); err == nil || !strings.HasSuffix(err.Error(), "METERPLEX_ALLOW_UNSAFE=fsync,superuser") {
		t.Errorf("%v", err)
	}
}

// The settings of the server, which all tests share, are read through a view that hides
// the catalogue's and shows an unsafe server.
func TestUnsafeServersAreFound(t *testing.T) {
	database := localtest.Database(t)
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	must.OK(t, err)
	defer root.Close(context.Background())
	run := func(statement string) {
		t.Helper()
		must.Exec(t, root, statement)
	}
	role := pgx.Identifier{"bypass_" + root.Config().Database}.Sanitize()
	run(`CREATE SCHEMA stub`)
	run(`GRANT USAGE ON SCHEMA stub TO PUBLIC`)
	run(`CREATE TABLE stub.pg_settings (name text, setting text)`)
	run(`GRANT SELECT ON stub.pg_settings TO PUBLIC`)
	run(`ALTER DATABASE ` + pgx.Identifier{root.Config().Database}.Sanitize() + ` SET search_path = stub, public, pg_catalog`)
	for setting, want := range map[string]string{
		`('fsync', 'off'), ('full_page_writes', 'on'), ('synchronous_commit', 'on')`:           "fsync",
		`('fsync', 'on'), ('full_page_writes', 'off'), ('synchronous_commit', 'remote_apply')`: "full_page_writes",
		`('fsync', 'on'), ('full_page_writes', 'on'), ('synchronous_commit', 'off')`:           "synchronous_commit",
		`('fsync', 'on'), ('full_page_writes', 'on'), ('synchronous_commit', 'local')`:         "synchronous_commit",
		`('fsync', 'off'), ('full_page_writes', 'off'), ('synchronous_commit', 'off')`:         "fsync full_page_writes synchronous_commit",
		`('fsync', 'on'), ('full_page_writes', 'on'), ('synchronous_commit', 'on')`:            "",
	} {
		run(`TRUNCATE stub.pg_settings`)
		run(`INSERT INTO stub.pg_settings VALUES ` + setting)
		if found := strings.Join(dangersOf(t, database), " "); found != want {
			t.Errorf("%s: %q", setting, found)
		}
	}
	run(`TRUNCATE stub.pg_settings`) // no setting of the server is unsafe
	run(`CREATE ROLE ` + role + ` LOGIN BYPASSRLS PASSWORD 'bypass'`)
	defer func() { _, _ = root.Exec(context.Background(), `DROP ROLE `+role) }()
	other, _ := url.Parse(database)
	other.User = url.UserPassword("bypass_"+root.Config().Database, "bypass")
	if found := dangersOf(t, other.String()); !slices.Equal(found, []string{"bypassrls"}) {
		t.Errorf("%v", found)
	}
}

func TestEveryTableOfTenantsForcesRowLevelSecurity(t *testing.T) {
	pool, _ := openPool(t)
	rows, err := pool.Query(t.Context(), `SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		AND a.attname = 'tenant_id'
 WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
 AND has_table_privilege('meterplex_tenant', c.oid, 'SELECT')`)
	must.OK(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) != 0 {
		t.Fatalf("tenants may read tables without forced row level security: %v %v", names, err)
	}
}

func TestMigrateAgainChangesNothing(t *testing.T) {
	_, url := openPool(t)
	if n, err := Migrate(t.Context(), url); n != 0 || err != nil {
		t.Fatalf("%d migrations applied again, %v", n, err)
	}
}
