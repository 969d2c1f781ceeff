package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// FrozenSessions ends sessions of processes like this one that have stopped in the
// middle of a transaction and keep others waiting. A process that is frozen keeps its
// connections: its kernel goes on answering for it, so that neither keepalives nor
// tcp_user_timeout notice. idle_in_transaction_session_timeout ends its session where
// the server waits for a statement, but nothing of PostgreSQL's before version 17
// does where it waits for the data of a COPY, or for answers to be taken. Heads that
// such a session has locked would be locked until the process runs again.
//
// What it had under way is rolled back. Its process finds out when it runs again, as
// with any connection that is lost.
type FrozenSessions struct {
	Pool   *pgxpool.Pool
	Logger *slog.Logger
	Ended  func() // is told of each; nil: nobody

	After time.Duration // that a session waits for its client, 0: DefaultFrozen
	Every time.Duration // how often it looks, 0: DefaultFrozenEvery

	seen map[frozen]bool // by the look before
}

// A statement of ours has its client's whole attention: the longest wait for one is
// some milliseconds, on a machine that swaps perhaps a second.
const (
	DefaultFrozen      = 10 * time.Second
	DefaultFrozenEvery = 2 * time.Second
)

// frozen is a session in one transaction.
type frozen struct {
	pid   int32
	since time.Time
}

// Run looks until the context ends.
func (f *FrozenSessions) Run(ctx context.Context) error {
	ticker := time.NewTicker(cmp.Or(f.Every, DefaultFrozenEvery))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := f.look(ctx); err != nil && ctx.Err() == nil {
			f.Logger.Debug("looking for frozen sessions; will try again", "err", err)
		}
	}
}

// Who is seen and may be ended are the sessions of the same login. Only one that has
// written or locked rows has a transaction id; only one that has neither been asked
// nor answered for so long has an old state_change. Whom nobody waits for is left alone.
const (
	asLoginSQL = `SET LOCAL ROLE NONE`
	frozenSQL  = `SELECT f.pid, f.xact_start, now() - f.state_change, left(f.query, 60),
 EXISTS (SELECT FROM pg_stat_activity w WHERE w.wait_event_type = 'Lock' AND f.pid = ANY (pg_blocking_pids(w.pid)))
 FROM pg_stat_activity f
 WHERE f.datname = current_database() AND f.usename = session_user AND f.application_name = current_setting('application_name')
 AND f.backend_xid IS NOT NULL AND f.wait_event IN ('ClientRead', 'ClientWrite') AND f.state_change < now() - $1::interval`
	endSessionSQL = `SELECT pg_terminate_backend($1)`
)

// lookTime bounds a look.
const lookTime = 5 * time.Second

// look ends those that were seen by the look before, too: one that works is hardly
// found waiting twice.
func (f *FrozenSessions) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return pgx.BeginFunc(ctx, f.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, asLoginSQL); err != nil {
			return fmt.Errorf("becoming the login: %w", err)
		}
		rows, err := tx.Query(ctx, frozenSQL, cmp.Or(f.After, DefaultFrozen))
		if err != nil {
			return fmt.Errorf("reading sessions: %w", err)
		}
		type session struct {
			frozen
			query   string
			waits   time.Duration
			blocked bool
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s session, err error) {
			return s, row.Scan(&s.pid, &s.since, &s.waits, &s.query, &s.blocked)
		})
		if err != nil {
			return fmt.Errorf("reading sessions: %w", err)
		}
		before := f.seen
		f.seen = make(map[frozen]bool, len(list))
		for _, s := range list {
			f.seen[s.frozen] = true
			if !s.blocked || !before[s.frozen] {
				continue
			}
			if _, err := tx.Exec(ctx, endSessionSQL, s.pid); err != nil {
				return fmt.Errorf("ending a session: %w", err)
			}
			f.Logger.Warn("ended the session of an instance that is frozen in mid-transaction and kept others waiting", "pid", s.pid, "waits", s.waits, "statement", s.query)
			if f.Ended != nil {
				f.Ended()
			}
		}
		return nil
	})
}
