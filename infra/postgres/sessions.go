package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// WrongRole means that a session does not run under WorkerRole, although its start asked for it.
type WrongRole struct{ Role string }

func (e *WrongRole) Error() string {
	return fmt.Sprintf("a session of the database runs as the role %q instead of %s: a connection pooler dropped the startup "+
		"parameter \"role\". "+
		"Connect to the server directly, or let the pooler pass the parameter on: docs/how-to/database-logins.md, \"Connection poolers\"",
		e.Role, WorkerRole)
}

// PoolerRefused means that a connection pooler, not the server, refused a session, e.g. because of its startup parameters.
type PoolerRefused struct{ Cause *pgconn.PgError }

func (e *PoolerRefused) Error() string {
	return fmt.Sprintf("a connection pooler such as PgBouncer refused the session, not the server the login: %s (SQLSTATE %s). %s",
		e.Cause.Message, e.Cause.Code, PoolerRemedy)
}

// PoolerRemedy is the remedy of a PoolerRefused.
const PoolerRemedy = `Connect to the server directly: docs/how-to/database-logins.md, "Connection poolers"`

// RefusedByPooler returns the refusal of a pooler in an error of a connection, or nil. PgBouncer refuses with the state of a violated
// protocol, which a server has for clients that are not PostgreSQL's only.
func RefusedByPooler(err error) *PoolerRefused {
	const violation = "08P01"
	var failed *pgconn.ConnectError
	var refused *pgconn.PgError
	if errors.As(err, &failed) && errors.As(err, &refused) && refused.Code == violation {
		return &PoolerRefused{refused}
	}
	return nil
}

// requireRole fails unless a new session runs under WorkerRole. In one round trip.
func requireRole(ctx context.Context, c *pgconn.PgConn) error {
	results, err := c.Exec(ctx, "SELECT current_user").ReadAll()
	if err == nil && (len(results) != 1 || len(results[0].Rows) != 1) {
		err = fmt.Errorf("%d answers", len(results))
	}
	if err != nil {
		return fmt.Errorf("reading the role of a session: %w", err)
	}
	if role := string(results[0].Rows[0][0]); role != WorkerRole {
		return &WrongRole{role}
	}
	return nil
}

// Connections are the connections that a server gives to a login, and those that are in use.
type Connections struct {
	Limit int // by max_connections without the reserved ones, or by a lower limit of the database or the login
	Used  int // counted against that limit
}

// Free returns the number of connections that are left.
func (c Connections) Free() int { return max(0, c.Limit-c.Used) }

// A login may not see the kind of another's session; sessions without a database are not clients. PostgreSQL
// 16 and later reserve connections for a role, too. -1: no limit.
const connectionsSQL = `
WITH sessions AS (SELECT count(*)::int AS all, (count(*) FILTER (WHERE datname = current_database()))::int AS here,
(count(*) FILTER (WHERE usename = session_user))::int AS own
  FROM pg_stat_activity WHERE datname IS NOT NULL)
SELECT l.most, l.used FROM sessions s, LATERAL (VALUES
  (current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int -
  coalesce(current_setting('reserved_connections', true), '0')::int, s.all),
  ((SELECT datconnlimit FROM pg_database WHERE datname = current_database()), s.here),
  ((SELECT rolconnlimit FROM pg_roles WHERE rolname = session_user), s.own)) AS l (most, used)
WHERE l.most >= 0 ORDER BY l.most - l.used LIMIT 1`

// CountConnections returns the limit that leaves the fewest connections.
func CountConnections(ctx context.Context, on Pool) (c Connections, err error) {
	if err := on.QueryRow(ctx, connectionsSQL).Scan(&c.Limit, &c.Used); err != nil {
		return c, fmt.Errorf("counting the connections of the server: %w", err)
	}
	return c, nil
}
