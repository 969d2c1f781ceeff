package postgres

import (
	"context"
	"database/sql"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// A migration waits briefly for a lock. PostgreSQL ends an autovacuum for a session that
// waits for its table for deadlock_timeout, 1 s by default, so that a migration would
// never get the table of a long one: each patientTry-th try waits for longer, unless
// sessions behind it would then wait for longer than those of the service do (workerParams).
const (
	migrationLock    = 500 * time.Millisecond
	patientTry       = 5
	patienceOver     = 200 * time.Millisecond // beyond deadlock_timeout
	patienceAtMost   = 1800 * time.Millisecond
	idleOfMigrations = 2
)

// migrationSessions are those of the login that migrates.
type migrationSessions struct {
	*sql.DB
	fixed bool         // the address sets how long they wait for a lock
	lock  atomic.Int64 // how long those do that are opened from now on
}

// waitInTry sets how long the sessions wait for a lock in a try, the first of which is 1.
func (m *migrationSessions) waitInTry(ctx context.Context, try int) {
	wait := migrationLock
	if try%patientTry == 0 && !m.fixed {
		var ms int64
		// A server that does not answer shows it in the try.
		err := m.QueryRowContext(ctx, `SELECT setting::bigint FROM pg_settings WHERE name = 'deadlock_timeout'`).Scan(&ms)
		if long := time.Duration(ms)*time.Millisecond + patienceOver; err == nil && long <= patienceAtMost {
			wait = max(wait, long)
		}
	}
	if m.lock.Swap(int64(wait)) != int64(wait) {
		// New sessions: RESET, which migrations use, sets what a session began with.
		m.SetMaxIdleConns(0)
		m.SetMaxIdleConns(idleOfMigrations)
	}
}

// migrationDB opens the database as its owner, in sessions that block others only
// briefly: neither behind a lock that they wait for, nor when their process is frozen
// or gone. Their statements take as long as they need: a setting of the login that ends
// one would end it in each try. Settings in the URL take precedence.
func migrationDB(url string) (*migrationSessions, error) {
	cc, err := connConfig(url)
	if err != nil {
		return nil, err
	}
	given := func(name string) bool {
		_, given := cc.RuntimeParams[name]
		return given || strings.Contains(cc.RuntimeParams["options"], name)
	}
	m := &migrationSessions{fixed: given("lock_timeout")}
	m.lock.Store(int64(migrationLock))
	for name, value := range map[string]string{
		"application_name": "meterplex migrate", "idle_in_transaction_session_timeout": "10s", "statement_timeout": "0",
	} {
		if !given(name) {
			cc.RuntimeParams[name] = value
		}
	}
	// Not every server and operating system has these settings. Without the first, a server
	// whose client is gone completes its statement: an index may take an hour, and hold the
	// lock that the next start waits for. The second is of PostgreSQL 17.
	optional := []string{`SET client_connection_check_interval = '1s'`}
	if !given("transaction_timeout") {
		optional = append(optional, `SET transaction_timeout = 0`)
	}
	m.DB = stdlib.OpenDB(*cc, stdlib.OptionBeforeConnect(m.beforeConnect),
		stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
			for _, set := range optional {
				if _, err := conn.Exec(ctx, set); err != nil && SQLState(err) == "" {
					return err
				}
			}
			return nil
		}))
	return m, nil
}

// beforeConnect is called with a shallow copy of the settings.
func (m *migrationSessions) beforeConnect(_ context.Context, cc *pgx.ConnConfig) error {
	if m.fixed {
		return nil
	}
	cc.RuntimeParams = maps.Clone(cc.RuntimeParams)
	cc.RuntimeParams["lock_timeout"] = strconv.FormatInt(time.Duration(m.lock.Load()).Milliseconds(), 10)
	return nil
}
