package localtest

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// KeepSessions opens a pool whose sessions outlive a context that is cancelled in the
// middle of a statement: the statement goes on to its end. Tests that stop a loop thousands of times
// spend most of their time on new sessions otherwise, and on planning the same statements: a session
// plans each once.
func KeepSessions(pc *pgxpool.Config) (*pgxpool.Pool, error) {
	pc.ConnConfig.BuildContextWatcherHandler = func(*pgconn.PgConn) ctxwatch.Handler { return ignoring{} }
	pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	return pgxpool.NewWithConfig(context.Background(), pc)
}

// KeepPlans opens a pool whose sessions plan each statement once, for tests with few rows: they spend more on
// planning than on running.
func KeepPlans(pc *pgxpool.Config) (*pgxpool.Pool, error) {
	pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	return pgxpool.NewWithConfig(context.Background(), pc)
}

// ignoring leaves a statement alone if its context ends.
type ignoring struct{}

func (ignoring) HandleCancel(context.Context) {}

func (ignoring) HandleUnwatchAfterCancel() {}
