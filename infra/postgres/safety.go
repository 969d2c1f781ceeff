package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/migrations"
)

// Danger is a property of the database that breaks a promise of the service.
type Danger struct {
	Name  string // a word of [Dangers]
	Found string // the finding
	Why   string // its consequence
	// Warns: the service starts, and warns at each start. Logins that create the roles of the service at the first start have it.
	Warns bool
}

// createRole is the danger of a login with CREATEROLE where that lets it join pg_execute_server_program.
const createRole = "createrole"

// Dangers lists all dangers by name, each with its consequence.
func Dangers() []Danger {
	const lost, altered, seen = "events that were answered accepted can be lost in a crash",
		"the service could alter or delete recorded events", "a tenant could be shown another's data"
	const hosted = lost + ", unless the server's provider keeps it safe by other means"
	return []Danger{
		{Name: "fsync", Why: hosted}, {Name: "full_page_writes", Why: hosted}, {Name: "synchronous_commit", Why: lost},
		{Name: "unlogged", Why: lost},
		{Name: "superuser", Why: altered + ", and row level security does not bind it"}, {Name: "bypassrls", Why: seen},
		{Name: "owner", Why: altered}, {Name: "grants", Why: altered}, {Name: "row_security", Why: seen},
		{Name: createRole, Why: "whoever has its password could run programs as the database server", Warns: true},
	}
}

// dangersSQL works before the first migration, too. A login that migrates owns the
// tables; the roles that requests run under must not.
//
// reached holds the roles whose rights such a role has or can give itself. It becomes a
// role by SET ROLE, or by a membership with ADMIN OPTION, which lets it grant itself the
// rest. By inheriting alone it has a role's rights, but not its attributes. Before
// PostgreSQL 16 a membership has no options of its own and always allows SET ROLE; a
// role with CREATEROLE may then join any role but a superuser. The database's owner is a
// member of pg_database_owner without a row that says so.
const dangersSQL = `
WITH RECURSIVE roles AS (SELECT oid, rolname, rolsuper, rolbypassrls, rolname IN ($1, $2) AS works FROM pg_roles
WHERE rolname IN (session_user, $1, $2)),
members AS (SELECT member, roleid, admin_option AS admin, coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, false) AS inherits,
  coalesce((to_jsonb(m) ->> 'set_option')::boolean, true) AS sets FROM pg_auth_members m
 UNION ALL SELECT datdba, 'pg_database_owner'::regrole, false, true, true FROM pg_database WHERE datname = current_database()),
reached (by, oid, becomes) AS (SELECT oid, oid, true FROM roles WHERE works AND NOT rolsuper
 UNION SELECT by, roleid, admin OR sets AND becomes FROM reached JOIN members ON member = oid WHERE admin OR inherits OR sets AND becomes),
becomes AS (SELECT w.oid AS by, w.rolname AS role, r.oid, r.rolname, r.rolsuper, r.rolbypassrls, r.rolcreaterole,
CASE WHEN r.oid <> w.oid THEN ' as ' || r.rolname ELSE '' END AS way
 FROM reached x JOIN roles w ON w.oid = x.by JOIN pg_roles r ON r.oid = x.oid WHERE x.becomes),
ours AS (SELECT oid, relname, relowner, relkind, relpersistence, relrowsecurity AND relforcerowsecurity AS guarded FROM pg_class
 WHERE relkind IN ('r', 'p') AND relname = ANY ($3) AND relnamespace = (SELECT relnamespace FROM pg_class
 WHERE oid = to_regclass('event_log'))),
log AS (SELECT * FROM ours WHERE relname IN ('event_log', 'event_log_rows'))
SELECT name, name || ' is ' || setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting <> 'on'
UNION ALL SELECT name, name || ' is ' || setting FROM pg_settings WHERE name = 'synchronous_commit' AND setting NOT IN ('on',
'remote_apply')
UNION ALL SELECT 'unlogged', 'the table ' || relname || ' is unlogged' FROM ours WHERE relpersistence <> 'p'
UNION ALL SELECT 'superuser', 'the role ' || rolname || ' is a superuser' FROM roles WHERE rolsuper
UNION ALL SELECT 'superuser', 'the role ' || role || ' can become the superuser ' || rolname FROM becomes WHERE oid <> by AND rolsuper
UNION ALL SELECT 'bypassrls', 'the role ' || rolname || ' has BYPASSRLS' FROM roles WHERE rolbypassrls AND NOT rolsuper
UNION ALL SELECT 'bypassrls', 'the role ' || role || ' can become ' || rolname || ', which has BYPASSRLS' FROM becomes WHERE oid <> by
AND rolbypassrls AND NOT rolsuper
UNION ALL SELECT 'owner', 'the role ' || rolname || ' acts as the owner of ' || relname FROM roles, log
 WHERE EXISTS (SELECT FROM reached WHERE reached.by = roles.oid AND reached.oid = relowner)
UNION ALL SELECT 'owner', 'the role ' || role || ' has CREATEROLE' || way || ', and can join the owner of ' || relname FROM becomes, log
 WHERE rolcreaterole AND current_setting('server_version_num')::int < 160000
UNION ALL SELECT 'createrole', 'the login ' || rolname || ' has CREATEROLE, and can join pg_execute_server_program' FROM pg_roles
 WHERE rolname = session_user AND rolcreaterole AND NOT rolsuper AND current_setting('server_version_num')::int < 160000
UNION ALL SELECT 'grants', 'the role ' || role || ' may ' || what || ' ' || relname || min(way) FROM becomes, log, unnest(ARRAY['UPDATE',
'DELETE', 'TRUNCATE']) what
 WHERE NOT rolsuper AND NOT EXISTS (SELECT FROM reached WHERE reached.by = becomes.by AND reached.oid = relowner)
 AND CASE what WHEN 'UPDATE' THEN has_any_column_privilege(becomes.oid, log.oid, what) ELSE has_table_privilege(becomes.oid, log.oid,
 what) END
 GROUP BY role, what, relname
UNION ALL SELECT 'row_security', 'row level security of ' || relname || ' is not forced' FROM ours
 WHERE NOT guarded AND (relname = 'tenants' OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = ours.oid AND attname = 'tenant_id'
 AND NOT attisdropped))
 AND EXISTS (SELECT FROM roles WHERE rolname = $2 AND NOT rolsuper AND has_any_column_privilege(roles.oid, ours.oid, 'SELECT'))
ORDER BY 1, 2`

// ourTables returns the tables that the migrations create: another application may have
// its own tables beside them.
func ourTables() ([]string, error) {
	files, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return nil, err
	}
	var names []string
	made := regexp.MustCompile(`^CREATE TABLE (\w+)`)
	for _, file := range files {
		sql, err := migrations.FS.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(sql) {
			if m := made.FindSubmatch(bytes.TrimLeft(line, " ")); m != nil {
				names = append(names, string(m[1]))
			}
		}
	}
	return names, nil
}

// FindDangers checks the database as the service's login, with the settings of its
// sessions: the tables of the migrations, and further tables of the service. It needs no
// schema, and a missing table is no danger.
func FindDangers(ctx context.Context, url string, further ...string) ([]Danger, error) {
	return findDangers(ctx, url, WorkerRole, TenantRole, further...)
}

func findDangers(ctx context.Context, url, worker, tenant string, further ...string) ([]Danger, error) {
	s := &Session{URL: url}
	defer s.Close()
	return s.findDangers(ctx, worker, tenant, further...)
}

// FindDangers checks the database in the session, as the function FindDangers does.
func (s *Session) FindDangers(ctx context.Context, further ...string) ([]Danger, error) {
	return s.findDangers(ctx, WorkerRole, TenantRole, further...)
}

func (s *Session) findDangers(ctx context.Context, worker, tenant string, further ...string) (found []Danger, err error) {
	tables, err := ourTables()
	if err != nil {
		return nil, err
	}
	tables = append(tables, further...)
	err = s.use(ctx, func(conn *pgx.Conn) (err error) {
		found, err = readDangers(ctx, conn, worker, tenant, tables)
		return err
	})
	return found, err
}

func readDangers(ctx context.Context, conn *pgx.Conn, worker, tenant string, tables []string) ([]Danger, error) {
	rows, err := conn.Query(ctx, dangersSQL, worker, tenant, tables)
	if err != nil {
		return nil, fmt.Errorf("looking for unsafe settings: %w", err)
	}
	known := Dangers()
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Danger, err error) {
		if err := row.Scan(&d.Name, &d.Found); err != nil {
			return d, err
		}
		k := known[slices.IndexFunc(known, func(k Danger) bool { return k.Name == d.Name })]
		d.Why, d.Warns = k.Why, k.Warns
		return d, nil
	})
}

// Refusal returns an error that lists the dangers that are not allowed and do not only warn, or nil.
func Refusal(found []Danger, allowed []string) error {
	var lines []string
	words := slices.Clone(allowed)
	for _, d := range found {
		if d.Warns || slices.Contains(allowed, d.Name) {
			continue
		}
		lines = append(lines, "  "+d.Name+": "+d.Found+"; "+d.Why)
		if !slices.Contains(words, d.Name) {
			words = append(words, d.Name)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New("the database is not safe to work with:\n" + strings.Join(lines, "\n") +
		"\nMend that (docs/reference/unsafe-settings.md; hosted servers are in it); or, where it is meant, start with " +
		"METERPLEX_ALLOW_UNSAFE=" + strings.Join(words, ","))
}
