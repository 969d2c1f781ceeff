// Package postgres connects to the database server: its roles and logins, migrations, settings
// that endanger data, frozen sessions and commits without an answer. It does not know the events and
// tables of the service; those are in eventlog and store.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// WorkerRole is the role that the service appends, relays and folds under. It
// owns no object and has neither UPDATE nor DELETE on the log.
const WorkerRole = "meterplex_worker"

// TenantRole is the role that reads of a tenant's key run under: SELECT, and of the
// tenant's own rows only.
const TenantRole = "meterplex_tenant"

// ReportingRole is the role that reporting tools read the views of figures as.
const ReportingRole = "meterplex_reporting"

// Config says how to reach the database.
type Config struct {
	URL             string
	MaxConns        int32 // 0: 16; of WorkerDB: no bound
	ApplicationName string
	// KeepPlans makes each session plan a statement once. It is for the few statements
	// that read events onward, thousands of times a minute: see genericPlans.
	KeepPlans bool
	// StatementTimeout bounds each statement; 0: no bound. It is for reads: the outcome of a COMMIT
	// that was cancelled is not known. A statement whose context ends is cancelled, too, and its
	// session remains.
	StatementTimeout time.Duration
	// Tracer, if set, traces the statements.
	Tracer pgx.QueryTracer
}

// maxIdle is the time after which a pool ends a session that it does not use.
const maxIdle = 5 * time.Minute

// PoolConfig returns the settings of a pool whose every session runs under WorkerRole, with durable
// commits and a bound on waiting for locks.
func PoolConfig(cfg Config) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("the database URL cannot be read: %w", err)
	}
	pc.MaxConns = cfg.MaxConns
	if pc.MaxConns == 0 {
		pc.MaxConns = 16
	}
	pc.MaxConnIdleTime = maxIdle
	noticeLoss(&pc.ConnConfig.Config)
	pc.ConnConfig.OnNotice, pc.ConnConfig.AfterConnect = noteWarning, requireRole
	pc.AfterConnect = scanUTC
	for name, value := range workerParams(cfg.ApplicationName) {
		pc.ConnConfig.RuntimeParams[name] = value
	}
	if cfg.KeepPlans {
		maps.Copy(pc.ConnConfig.RuntimeParams, genericPlans())
	}
	if cfg.StatementTimeout > 0 {
		pc.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(cfg.StatementTimeout.Milliseconds(), 10)
		pc.ConnConfig.BuildContextWatcherHandler = cancelStatement
	}
	pc.ConnConfig.Tracer = newGrowth()
	if cfg.Tracer != nil {
		pc.ConnConfig.Tracer = multitracer.New(pc.ConnConfig.Tracer, cfg.Tracer)
	}
	return pc, nil
}

// Open connects a pool of PoolConfig. Its error is a [WrongRole] if a pooler drops the role.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	pc, err := PoolConfig(cfg)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("opening the database pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("reaching the database: %w", err)
	}
	return pool, nil
}

// scanUTC makes a connection read times in UTC, which the driver returns in the time zone of the process: events
// record times that were read from the database.
func scanUTC(_ context.Context, c *pgx.Conn) error {
	c.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
	return nil
}

// A statement that ends within cancelAfter of its context needs no request to cancel it. A server
// that does not end it within closeAfter loses the connection.
const (
	cancelAfter = 100 * time.Millisecond
	closeAfter  = 5 * time.Second
)

// cancelStatement asks the server to end a statement whose context has ended. The driver's
// default closes the connection instead: each client that leaves early costs a session.
func cancelStatement(c *pgconn.PgConn) ctxwatch.Handler {
	return &pgconn.CancelRequestContextWatcherHandler{Conn: c, CancelRequestDelay: cancelAfter, DeadlineDelay: closeAfter}
}

// connConfig reads the address of a database, for connections that end if its server vanishes.
func connConfig(url string) (*pgx.ConnConfig, error) {
	cc, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("the database URL cannot be read: %w", err)
	}
	noticeLoss(&cc.Config)
	return cc, nil
}

// OwnerDB opens the database as its owner, for libraries that create their own tables.
func OwnerDB(url string) (*sql.DB, error) {
	cc, err := connConfig(url)
	if err != nil {
		return nil, err
	}
	return stdlib.OpenDB(*cc), nil
}

// Queryer is a pool, a connection or a transaction.
type Queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Pool runs statements and transactions, each on a connection of its own.
type Pool interface {
	Queryer
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

// RetryPause is the pause after an attempt that failed, from 1.
func RetryPause(attempt int) time.Duration {
	return min(time.Duration(attempt)*50*time.Millisecond, time.Second)
}

// Hopeless reports whether a server error cannot be fixed by a retry. A retry may fix
// lost connections (08), conflicts (40), lack of resources (53), interventions and
// shutdowns (57), lock timeouts (55), and a pause of this process.
func Hopeless(err error) bool {
	state := SQLState(err)
	return state != "" && state != IdleInTx && !slices.Contains([]string{"08", "40", "53", "55", "57"}, state[:2])
}

// SQLState returns the SQLSTATE of an error, "" if the server did not answer.
func SQLState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// SQLSTATEs.
const (
	UniqueViolation  = "23505"
	LockNotAvailable = "55P03"
	IdleInTx         = "25P03" // the session paused for too long: it is ended and rolled back

	notAllowed    = "42501"
	internalError = "XX000" // e.g., a concurrent change to the same row of a system catalogue
	deadlock      = "40P01"
)

// CommitTimeout bounds the wait for the answer to a COMMIT.
const CommitTimeout = 10 * time.Second

// ErrCommitUnknown means that COMMIT was sent and not answered, or answered with a WARNING: the
// transaction may be durable or not. Only the server's own error means that it is not.
var ErrCommitUnknown = errors.New("the outcome of COMMIT is not known")

// ClassifyCommit distinguishes a refused commit from an unanswered one.
func ClassifyCommit(err error) error {
	if err == nil || SQLState(err) != "" {
		return err
	}
	return fmt.Errorf("%w: %v", ErrCommitUnknown, err)
}

// lastWarning is where a connection keeps its server's last WARNING, for Commit.
const lastWarning = "meterplex.warning"

// noteWarning stores a WARNING of the server in the connection's slot, if Commit put one there.
func noteWarning(c *pgconn.PgConn, n *pgconn.Notice) {
	if slot, ok := c.CustomData()[lastWarning].(*atomic.Pointer[string]); ok && n.SeverityUnlocalized == "WARNING" {
		slot.Store(&n.Message)
	}
}

// Commit runs a COMMIT on a connection. A WARNING makes the outcome unknown: the server gives
// one when its wait for the synchronous standby was cancelled, by an administrator or by
// statement_timeout, and the transaction is on no standby then.
func Commit(conn *pgx.Conn, commit func() error) error {
	slot := new(atomic.Pointer[string])
	if conn != nil { // nil on the simulated database
		conn.PgConn().CustomData()[lastWarning] = slot
	}
	err := commit()
	if warning := slot.Load(); err == nil && warning != nil {
		return fmt.Errorf("%w: WARNING: %s", ErrCommitUnknown, *warning)
	}
	return ClassifyCommit(err)
}

// InTx runs a function in a transaction and commits it within CommitTimeout, even if
// the caller's context ends.
func InTx(ctx context.Context, pool Pool, f func(pgx.Tx) error) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // no effect after a commit
	if err := f(tx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CommitTimeout)
	defer cancel()
	return Commit(tx.Conn(), func() error { return tx.Commit(ctx) })
}

// WorkerDB opens a database/sql pool whose sessions run under WorkerRole, for
// libraries that need database/sql. Each reader of the PostgreSQL pipe holds one
// connection of it.
func WorkerDB(cfg Config) (*sql.DB, error) {
	cc, err := connConfig(cfg.URL)
	if err != nil {
		return nil, err
	}
	for name, value := range workerParams(cfg.ApplicationName) {
		cc.RuntimeParams[name] = value
	}
	if cfg.KeepPlans {
		maps.Copy(cc.RuntimeParams, genericPlans())
	}
	cc.AfterConnect = requireRole
	// The pipe's readers hold a transaction open while a handler runs.
	cc.RuntimeParams["idle_in_transaction_session_timeout"] = "60s"
	db := stdlib.OpenDB(*cc)
	db.SetMaxOpenConns(int(cfg.MaxConns))
	if cfg.MaxConns > 0 {
		db.SetMaxIdleConns(int(cfg.MaxConns)) // by default the library keeps 2, and opens a session for each other poll
	}
	db.SetConnMaxIdleTime(maxIdle)
	return db, nil
}

func workerParams(application string) map[string]string {
	return map[string]string{
		"role": WorkerRole, "application_name": application, "timezone": "UTC", "synchronous_commit": "on",
		// Our transactions never pause: one that does belongs to a process that is
		// frozen or cut off, and its locks block whole partitions.
		"lock_timeout": "2s", "idle_in_transaction_session_timeout": "5s",
		// A plan from when a table was empty must not be reused after the table has grown. PostgreSQL still reuses
		// that of a statement without parameters: it must be right at any size.
		"plan_cache_mode": "force_custom_plan",
		// PostgreSQL compiles plans that seem expensive. Ours are not: they read a page, or look rows up by an index that genericPlans
		// requires.
		"jit": "off",
		// By PostgreSQL's default, which is for disks that turn, a page of a tenant's events is found by reading a large part of them.
		"random_page_cost": "1.1",
	}
}

// genericPlans returns settings for sessions that plan once: planning these statements took
// longer than running them. A kept plan may be from when a table was empty, so the
// planner may only choose index look-ups, one for each row. That is right at any size,
// and enough for these statements.
func genericPlans() map[string]string {
	return map[string]string{
		"plan_cache_mode": "force_generic_plan",
		"enable_seqscan":  "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "enable_material": "off",
	}
}

// KeepPlansSQL makes the session plan each statement of a transaction once, as KeepPlans does for all of a session's transactions. It is
// for short transactions that run often: planning their statements again took longer than running them.
func KeepPlansSQL() string {
	settings := genericPlans()
	list := make([]string, 0, len(settings))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		list = append(list, "set_config('"+name+"', '"+settings[name]+"', true)")
	}
	return "SELECT " + strings.Join(list, ", ")
}
