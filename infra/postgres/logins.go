package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Logins are the addresses of the database for the service's logins.
type Logins struct {
	Migrates string // owns the tables, and creates missing roles
	Works    string // sets WorkerRole and TenantRole in its sessions; "": not known
	// Session is of Works. Nil: GrantRoles opens one.
	Session *Session
}

// loginSQL asks which roles are there, and which of them a login cannot set. From PostgreSQL 16 on a
// membership may lack the SET option: the one that CREATE ROLE gives to the login that
// creates a role does.
const loginSQL = `SELECT session_user::text, current_setting('server_version_num')::int / 10000,
 (SELECT count(*) FROM pg_roles WHERE rolname IN ($1, $2)),
 ARRAY(SELECT r.rolname::text FROM pg_roles r WHERE r.rolname IN ($1, $2)
  AND NOT pg_has_role(session_user, r.oid, CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END)
  ORDER BY 1)`

// splitSetOption is the first major version in which a membership has a SET option.
const splitSetOption = 16

// grantStatement lets a login set roles.
func grantStatement(roles []string, login string, major int) string {
	grant := "GRANT " + strings.Join(roles, ", ") + " TO " + pgx.Identifier{login}.Sanitize()
	if major >= splitSetOption {
		// Without this clause, an option that the grantor set to FALSE before stays FALSE.
		grant += " WITH SET TRUE"
	}
	return grant + ";"
}

// grantTries and grantPause bound the tries of a grant. Instances that start together
// on databases of one server grant the same roles, and PostgreSQL 15 fails all but one;
// a replica shows a grant later than its primary.
const (
	grantTries = 50
	grantPause = 100 * time.Millisecond
)

// GrantRoles lets the login that works set WorkerRole and TenantRole. A role that it
// cannot set yet is granted by the login that migrates. If that is not allowed, GrantRoles
// returns a *RolesNotGranted.
func GrantRoles(ctx context.Context, logins Logins, logger *slog.Logger) error {
	works := logins.Session
	if works == nil {
		works = &Session{URL: logins.Works}
		defer works.Close()
	}
	for tries := grantTries; ; tries-- {
		e, there := &RolesNotGranted{}, 0
		err := works.use(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, loginSQL, WorkerRole, TenantRole).Scan(&e.Login, &e.Major, &there, &e.Roles)
		})
		if err == nil && there < 2 {
			return fmt.Errorf("the roles %s and %s are missing: a database that is restored needs them beforehand, see "+
				"docs/how-to/database-logins.md", WorkerRole, TenantRole)
		}
		if err != nil || len(e.Roles) == 0 {
			return err
		}
		err = e.grant(ctx, logins.Migrates)
		switch state := SQLState(err); {
		case err == nil && tries == grantTries:
			logger.Info("granted the roles of the service to its login", "login", e.Login, "roles", e.Roles)
		case err == nil && tries == 1:
			return fmt.Errorf("the login %q was granted %s, and its server still does not let it set them", e.Login,
				strings.Join(e.Roles, ", "))
		case err != nil && (tries == 1 || state != UniqueViolation && state != internalError):
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(grantPause):
		}
	}
}

// withLogin opens a session of a login for a function.
func withLogin(ctx context.Context, address string, do func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("reaching the database: %w", err)
	}
	return errors.Join(do(conn), conn.Close(context.WithoutCancel(ctx)))
}

// RolesNotGranted is the error of a login that cannot set the roles of the service.
type RolesNotGranted struct {
	Login    string
	Roles    []string // that it cannot set
	Major    int      // version of the server
	Migrates string   // the login that may not grant them
	Grantors []string // the logins that may, besides superusers
	cause    error
}

// grantorsSQL asks for the logins that may grant all of some roles.
const grantorsSQL = `SELECT session_user::text, ARRAY(SELECT pg_get_userbyid(member)::text FROM pg_auth_members
 WHERE admin_option AND roleid IN (SELECT oid FROM pg_roles WHERE rolname = ANY ($1)) GROUP BY member
 HAVING count(DISTINCT roleid) = cardinality($1::text[]) ORDER BY 1)`

// grant grants the roles as another login. If that is not allowed, it completes the
// error and returns it.
func (e *RolesNotGranted) grant(ctx context.Context, as string) error {
	return withLogin(ctx, as, func(conn *pgx.Conn) error {
		_, e.cause = conn.Exec(ctx, grantStatement(e.Roles, e.Login, e.Major))
		if SQLState(e.cause) != notAllowed {
			return e.cause
		}
		if err := conn.QueryRow(ctx, grantorsSQL, e.Roles).Scan(&e.Migrates, &e.Grantors); err != nil {
			return errors.Join(e, err)
		}
		return e
	})
}

func (e *RolesNotGranted) Unwrap() error { return e.cause }

func (e *RolesNotGranted) Error() string {
	as := "a superuser"
	if e.Major < splitSetOption {
		as = "a superuser or a role with CREATEROLE"
	}
	if len(e.Grantors) > 0 {
		as = strings.Join(e.Grantors, ", ") + " or " + as
	}
	who := fmt.Sprintf("the login %q may not SET ROLE %s", e.Login, strings.Join(e.Roles, ", "))
	if e.Migrates == e.Login {
		who += ", nor grant that to itself"
	} else {
		who += fmt.Sprintf(", and the login %q may not grant them", e.Migrates)
	}
	return fmt.Sprintf("%s: %v.\nRun as %s:\n  %s", who, e.cause, as, grantStatement(e.Roles, e.Login, e.Major))
}

// MigrationNotAllowed is the error of a login that lacks a right for a migration.
type MigrationNotAllowed struct {
	Login    string
	Major    int // version of the server
	Database string
	Schema   string   // "": no schema of the search path may be used
	Aside    bool     // Schema is another one than public, which the functions of the migrations name
	Fresh    bool     // no migration was applied yet
	Creates  bool     // tables in Schema
	Roles    []string // that are missing and that it may not create
	Owner    string   // of the tables, if it may not act as that; else ""
	Works    string   // the login that will work
	cause    error    // nil: it was not tried
}

const migratorSQL = `SELECT session_user::text, current_setting('server_version_num')::int / 10000, current_database()::text,
	coalesce(current_schema()::text, ''),
 coalesce(current_schema() <> 'public', has_schema_privilege(to_regnamespace('public'), 'USAGE'), false),
 to_regclass('goose_db_version') IS NULL, coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
 ARRAY(SELECT name FROM unnest(ARRAY[$1, $2]) name WHERE name NOT IN (SELECT rolname FROM pg_roles)
  AND NOT (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = session_user) ORDER BY 1),
 coalesce((SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = to_regclass('goose_db_version')
 AND NOT pg_has_role(session_user, relowner, 'USAGE')), '')`

// rightsToMigrate asks for the rights of the login that migrates.
func rightsToMigrate(ctx context.Context, db *sql.DB, logins Logins) (*MigrationNotAllowed, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("reaching the database: %w", err)
	}
	defer conn.Close()
	e := &MigrationNotAllowed{}
	err = conn.Raw(func(driver any) error {
		row := driver.(*stdlib.Conn).Conn().QueryRow(ctx, migratorSQL, WorkerRole, TenantRole)
		return row.Scan(&e.Login, &e.Major, &e.Database, &e.Schema, &e.Aside, &e.Fresh, &e.Creates, &e.Roles, &e.Owner)
	})
	e.Works = e.Login
	if works, unread := pgx.ParseConfig(logins.Works); logins.Works != "" && unread == nil {
		e.Works = works.User
	}
	return e, err
}

// mayMigrate returns a *MigrationNotAllowed before anything is created. A table of a login
// that cannot go on would keep another login from migrating.
func mayMigrate(ctx context.Context, db *sql.DB, logins Logins) error {
	e, err := rightsToMigrate(ctx, db, logins)
	if err == nil && (len(e.Roles) > 0 || e.Fresh && (e.Aside || !e.Creates)) {
		return e
	}
	return err
}

// explainDenied completes the error of a migration that was not allowed.
func explainDenied(ctx context.Context, db *sql.DB, logins Logins, err error) error {
	if SQLState(err) != notAllowed {
		return err
	}
	e, failed := rightsToMigrate(ctx, db, logins)
	if failed != nil {
		return errors.Join(err, failed)
	}
	e.cause = err
	return e
}

func (e *MigrationNotAllowed) Unwrap() error { return e.cause }

func (e *MigrationNotAllowed) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%v\n%s", e.cause, e.remedy())
	}
	return "migrating the database: " + e.remedy()
}

func (e *MigrationNotAllowed) remedy() string {
	login := pgx.Identifier{e.Login}.Sanitize()
	switch {
	case len(e.Roles) > 0:
		lines := ""
		for _, role := range e.Roles {
			lines += "\n  CREATE ROLE " + role + " NOLOGIN;"
		}
		return fmt.Sprintf("the login %q may not create the roles %s. Run as a superuser:%s\n  %s\nOr ALTER ROLE %s CREATEROLE, which "+
			"lets it do so by itself",
			e.Login, strings.Join(e.Roles, ", "), lines, grantStatement(e.Roles, e.Works, e.Major), login)
	case e.Owner != "":
		return fmt.Sprintf("the tables belong to %q, and the login %q may not migrate them. Set DATABASE_MIGRATE_URL to the "+
			"address for %[1]q", e.Owner, e.Login)
	case e.Fresh && e.Aside:
		finds := "finds no schema for the tables"
		if e.Schema != "" {
			finds = fmt.Sprintf("would create the tables in the schema %q", e.Schema)
		}
		return fmt.Sprintf("the login %q %s: its search_path has to begin with public. Run as it, or as a superuser:\n  ALTER ROLE %s "+
			"IN DATABASE %s SET search_path = public;\nOr set search_path=public in its address, which takes precedence",
			e.Login, finds, login, pgx.Identifier{e.Database}.Sanitize())
	case !e.Creates:
		schema := e.Schema
		if schema == "" {
			schema = "public"
		}
		return fmt.Sprintf("the login %q may not create tables in the schema %s. Run as a superuser, in the database %s:\n  GRANT "+
			"USAGE, CREATE ON SCHEMA %s TO %s;",
			e.Login, schema, e.Database, pgx.Identifier{schema}.Sanitize(), login)
	}
	return fmt.Sprintf("the rights that the login %q needs: docs/how-to/database-logins.md", e.Login)
}
