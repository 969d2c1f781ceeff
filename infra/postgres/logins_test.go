package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// loginCase is how a DBA prepared the logins of a database: $W is the one that works,
// $M the one that migrates.
type loginCase struct {
	name     string
	since    int      // the first major version that has the statements; 0: any
	every    bool     // it is tried on every version, not on the oldest and the newest alone
	prepare  []string // by the superuser
	after    string   // by the superuser, in the database
	owner    string   // of the database; "": the login that migrates
	migrates string   // "": $W
	refused  string   // by which words it is refused until the printed statements are run; "": it is not
	from, to int      // the major versions that refuse it; 0: from the oldest, to the newest
}

func loginCases() []loginCase {
	const works, creates = `CREATE ROLE $W LOGIN PASSWORD 'p'`, `CREATE ROLE $W LOGIN PASSWORD 'p' CREATEROLE`
	const migrates, createsFirst = `CREATE ROLE $M LOGIN PASSWORD 'p'`, `CREATE ROLE $M LOGIN PASSWORD 'p' CREATEROLE`
	const roles = `CREATE ROLE meterplex_worker NOLOGIN; CREATE ROLE meterplex_tenant NOLOGIN`
	const cannotSet = `the login "$W" may not SET ROLE meterplex_tenant, meterplex_worker`
	return []loginCase{
		{name: "it creates the roles", every: true, prepare: []string{creates}},
		{name: "it creates the roles and inherits nothing", prepare: []string{creates + ` NOINHERIT`},
			to: 15, refused: `"$W" may not create tables in the schema public`}, // the schema belongs to the database's owner by a role
		{name: "the roles are granted to it", every: true,
			prepare: []string{works, roles, `GRANT meterplex_worker, meterplex_tenant TO $W`}},
		{name: "to SET and not to INHERIT", since: 16,
			prepare: []string{works, roles, `GRANT meterplex_worker, meterplex_tenant TO $W WITH INHERIT FALSE`}},
		{name: "to INHERIT and not to SET", since: 16, every: true, refused: cannotSet,
			prepare: []string{works, roles, `GRANT meterplex_worker, meterplex_tenant TO $W WITH SET FALSE`}},
		{name: "with ADMIN OPTION", prepare: []string{works, roles, `GRANT meterplex_worker, meterplex_tenant TO $W WITH ADMIN OPTION`}},
		{name: "with ADMIN OPTION and not to SET", since: 16,
			prepare: []string{works, roles, `GRANT meterplex_worker, meterplex_tenant TO $W WITH ADMIN TRUE, SET FALSE`}},
		{name: "to a group of its", prepare: []string{works, roles, `CREATE ROLE of_$W NOLOGIN`,
			`GRANT meterplex_worker, meterplex_tenant TO of_$W`, `GRANT of_$W TO $W`}},
		{name: "the roles are there and not granted", prepare: []string{works, roles}, refused: cannotSet},
		{name: "one of the roles is granted", prepare: []string{works, roles, `GRANT meterplex_worker TO $W`},
			refused: `the login "$W" may not SET ROLE meterplex_tenant,`},
		{name: "the roles are missing", every: true, prepare: []string{works},
			refused: `"$W" may not create the roles meterplex_tenant, meterplex_worker`},
		{name: "another database's login created the roles", from: 16,
			prepare: []string{creates, createsFirst, `SET ROLE $M; ` + roles + `; RESET ROLE`},
			refused: cannotSet + `.* as $M or a superuser`},
		{name: "it may not create tables", prepare: []string{creates}, owner: "postgres",
			refused: `"$W" may not create tables in the schema public`},
		{name: "it may use no schema", prepare: []string{works, roles, `GRANT meterplex_worker, meterplex_tenant TO $W`}, owner: "postgres",
			after:   `REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO meterplex_worker, meterplex_tenant`,
			refused: `"$W" may not create tables in the schema public`},
		{name: "its first schema is another", prepare: []string{creates}, after: `CREATE SCHEMA AUTHORIZATION $W`,
			refused: `"$W" would create the tables in the schema "$W"`},
		{name: "its search path lacks public", prepare: []string{creates, `ALTER ROLE $W SET search_path = other`},
			refused: `"$W" finds no schema for the tables`},
		{name: "two logins", every: true, migrates: "$M", prepare: []string{works, createsFirst}},
		{name: "two logins and the roles are granted", migrates: "$M",
			prepare: []string{works, migrates, roles, `GRANT meterplex_worker, meterplex_tenant TO $W`}},
		{name: "two logins and a superuser migrates", migrates: "postgres", prepare: []string{works}},
		{name: "two logins and none may grant", migrates: "$M", prepare: []string{works, migrates, roles},
			refused: cannotSet + `, and the login "$M" may not grant them`},
	}
}

// The rights to set and to grant a role differ between the major versions of PostgreSQL.
func TestPostgres15(t *testing.T) {
	tier.AtSize(t)
	onPostgres(t, 15)
}
func TestPostgres16(t *testing.T) {
	tier.AtSize(t)
	onPostgres(t, 16)
}
func TestPostgres17(t *testing.T) {
	tier.AtSize(t)
	onPostgres(t, 17)
}
func TestPostgres18(t *testing.T) {
	tier.AtSize(t)
	onPostgres(t, 18)
}

// onPostgres tries each kind of login on a major version: one with the rights works, and
// one without them works once the statements of its refusal were run.
func onPostgres(t *testing.T, major int) {
	t.Parallel()
	s, majors := localtest.PostgresOf(t, major), local.Majors()
	outer := major == majors[0] || major == majors[len(majors)-1] // in between all is as on the newest
	for n, c := range loginCases() {
		if major >= c.since && (c.every || outer) {
			t.Run(c.name, func(t *testing.T) { newLoginTrial(t, s, major, n).run(c) })
		}
	}
	t.Run("grants at the same time", func(t *testing.T) { grantsTogether(newLoginTrial(t, s, major, 100)) })
	t.Run("timeouts of the login", func(t *testing.T) { unbounded(newLoginTrial(t, s, major, 103)) })
	if outer {
		t.Run("memberships", func(t *testing.T) { memberships(newLoginTrial(t, s, major, 101)) })
	}
	if major == majors[len(majors)-1] {
		t.Run("TLS", func(t *testing.T) { overTLS(newLoginTrial(t, s, major, 102)) }) // last: it changes the server
	}
}

// loginTrial is a case on a server.
type loginTrial struct {
	*testing.T
	major    int
	root     *pgx.Conn // the superuser's, in the case's database once there is one
	admin    string
	database string
	names    *strings.Replacer
}

func newLoginTrial(t *testing.T, s *localtest.Server, major, n int) *loginTrial {
	return &loginTrial{T: t, major: major, admin: s.AdminURL(), database: fmt.Sprint("database_", n),
		names: strings.NewReplacer("$W", fmt.Sprint("works_", n), "$M", fmt.Sprint("migrates_", n))}
}

func (l *loginTrial) exec(statement string) {
	l.Helper()
	if _, err := l.root.Exec(context.Background(), l.names.Replace(statement)); err != nil {
		l.Fatal(l.names.Replace(statement), err)
	}
}

func (l *loginTrial) connect(database string) {
	l.Helper()
	u, err := url.Parse(l.admin)
	must.OK(l, err)
	u.Path = "/" + database
	if l.root, err = pgx.Connect(context.Background(), u.String()); err != nil {
		l.Fatal(err)
	}
}

// url is a login's address of the case's database.
func (l *loginTrial) url(login string) string {
	u, err := url.Parse(l.admin)
	must.OK(l, err)
	u.Path = "/" + l.database
	if login != "postgres" {
		u.User = url.UserPassword(l.names.Replace(login), "p")
	}
	return u.String()
}

// create makes the roles of the case, and its database.
func (l *loginTrial) create(owner string, statements ...string) {
	l.Helper()
	l.connect("postgres")
	l.Cleanup(l.clean)
	for _, statement := range statements {
		l.exec(statement)
	}
	l.exec(`CREATE DATABASE ` + l.database + ` OWNER ` + owner)
	_ = l.root.Close(l.Context())
	l.connect(l.database)
}

// clean leaves the server as it was.
func (l *loginTrial) clean() {
	_ = l.root.Close(context.Background())
	l.connect("postgres")
	l.exec(`DROP DATABASE IF EXISTS ` + l.database + ` WITH (FORCE)`)
	l.exec(`DO $$ DECLARE names text; BEGIN
 SELECT string_agg(quote_ident(rolname), ', ') INTO names FROM pg_roles WHERE rolname !~ '^pg_' AND rolname NOT IN ('postgres',
 'meterplex');
 EXECUTE 'DROP ROLE ' || names; END $$`)
	_ = l.root.Close(context.Background())
}

func (l *loginTrial) run(c loginCase) {
	if c.migrates == "" {
		c.migrates = "$W"
	}
	if c.owner == "" {
		c.owner = c.migrates
	}
	l.create(c.owner, c.prepare...)
	if c.after != "" {
		l.exec(c.after)
	}
	logins := Logins{Migrates: l.url(c.migrates), Works: l.url("$W")}
	if c.refused != "" && l.major >= c.from && (c.to == 0 || l.major <= c.to) {
		l.refused(c, logins)
	}
	if _, err := MigrateAs(l.Context(), logins, slog.Default()); err != nil {
		l.Fatal(err)
	}
	l.works()
}

var statementLine = regexp.MustCompile(`(?m)^  (.*;)$`)

// refused checks the text of the refusal and runs the statements that it prints.
func (l *loginTrial) refused(c loginCase, logins Logins) {
	l.Helper()
	_, err := MigrateAs(l.Context(), logins, slog.Default())
	if err == nil || !regexp.MustCompile(l.names.Replace(c.refused)).MatchString(strings.ReplaceAll(err.Error(), "\n", " ")) {
		l.Fatalf("the refusal is %v, want %q", err, c.refused)
	}
	var tables int
	if rights := (*MigrationNotAllowed)(nil); errors.As(err, &rights) {
		if scanned := l.root.QueryRow(l.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'`).
			Scan(&tables); scanned != nil || tables > 0 {
			l.Errorf("it was refused with %d tables made, %v", tables, scanned)
		}
	}
	l.Log(err)
	found := statementLine.FindAllStringSubmatch(err.Error(), -1)
	if len(found) == 0 {
		l.Fatal("it prints no statement")
	}
	for _, m := range found {
		l.exec(m[1])
	}
}

// expires lets the functions of the retention run as whichever role owns the tables.
func (l *loginTrial) expires(pool Pool) {
	l.Helper()
	must.Exec(l, pool, `INSERT INTO idempotency_answers (tenant_id, key, request_hash, status, body, created_at) VALUES ($1, 'k', '', 0,
		'{}', now() - interval '2 days')`, uuid.Nil)
	var answers, others int
	if err := pool.QueryRow(l.Context(), `SELECT expire_answers('1 day', 10), expire_replays('1 day', 10) + expire_rebuild_units('1 day',
		10)`).Scan(&answers, &others); err != nil || answers != 1 || others != 0 {
		l.Errorf("%d answers, %d replays and rebuilds expired, %v", answers, others, err)
	}
}

// works appends as the login that works, reads as a tenant, and passes the safety checks.
func (l *loginTrial) works() {
	l.Helper()
	pool, err := Open(l.Context(), Config{URL: l.url("$W")})
	must.OK(l, err)
	defer pool.Close()
	tenant := uuid.Must(uuid.NewV7())
	if at, err := AppendOne(l.Context(), pool, tenant); err != nil || at.Number != 1 {
		l.Errorf("appended at %v: %v", at, err)
	}
	tx, err := pool.Begin(l.Context())
	must.OK(l, err)
	defer tx.Rollback(context.Background())
	var rows, head int64
	var generation *int
	for _, step := range []func() error{
		func() error { _, err := tx.Exec(l.Context(), `SET LOCAL ROLE meterplex_tenant`); return err },
		func() error {
			_, err := tx.Exec(l.Context(), `SELECT set_config('meterplex.tenant_id', $1, true)`, tenant.String())
			return err
		},
		func() error { return tx.QueryRow(l.Context(), `SELECT count(*) FROM event_log`).Scan(&rows) },
		func() error {
			return tx.QueryRow(l.Context(),
				`SELECT coalesce(head, 0), generation FROM consumer_standing($1, $2, 'usage_aggregates', NULL, 'meterplex-usage-aggregator',
					false, 1000)`,
				events.PartitionOf(tenant), tenant).Scan(&head, &generation)
		},
	} {
		must.OK(l, step())
	}
	must.OK(l, tx.Rollback(l.Context()))
	l.expires(pool)
	if rows != 1 || head != 1 || generation == nil {
		l.Errorf("as a tenant: %d rows, head %d, generation %v", rows, head, generation)
	}
	if found := dangersOf(l.T, l.url("$W")); len(found) > 0 {
		l.Errorf("unsafe: %v", found)
	}
}
