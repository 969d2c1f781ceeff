package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain/loop"
)

// FrozenSessions ends sessions of processes like this one that have stopped in the
// middle of a transaction and block others. A frozen process keeps its connections: its
// kernel still answers for it, so neither keepalives nor tcp_user_timeout notice.
// idle_in_transaction_session_timeout ends its session if the server waits for a
// statement. Before version 17, PostgreSQL has no timeout for a wait for the data of a
// COPY, or for a client to read its answers. Heads that such a session has locked would
// stay locked until the process runs again.
//
// Its transaction is rolled back. The process finds a lost connection when it runs again.
type FrozenSessions struct {
	Pool   *pgxpool.Pool
	Logger *slog.Logger
	Ended  func() // is called after each ended session; may be nil

	After  time.Duration // longest wait of a session for its client, 0: DefaultFrozen
	Answer time.Duration // longest wait for the client to read an answer, 0: DefaultUntaken
	Every  time.Duration // interval between looks, 0: DefaultFrozenEvery
	Ticks  loop.Ticks    // the moments of looks

	seen    map[frozen]waiting // by the previous look
	refused bool               // the database has refused to end a session
}

// Our clients never pause inside a transaction: the longest wait for one is a few
// milliseconds, on a machine that swaps perhaps a second. A COPY over a slow link may
// take long, but its progress is visible. The progress of a long answer is not.
const (
	DefaultFrozen      = 10 * time.Second
	DefaultUntaken     = time.Minute
	DefaultFrozenEvery = 2 * time.Second
)

// frozen is a session in one transaction.
type frozen struct {
	pid   int32
	since time.Time
}

// waiting is a session whose server process waits for the client.
type waiting struct {
	frozen
	state   string
	changed time.Time     // the state, as the server says
	waits   time.Duration // since then
	copied  *int64        // bytes received of a COPY; nil: no COPY runs
	query   string
	still   time.Time // when it was first seen with this number of bytes
	ended   bool      // it was terminated, which may take a busy server a while
}

// Run looks until the context ends.
func (f *FrozenSessions) Run(ctx context.Context) error {
	return loop.Loop{Every: f.every(), Ticks: f.Ticks, Logger: f.Logger}.Run(ctx, func(ctx context.Context) error {
		if err := f.poll(ctx); err != nil && ctx.Err() == nil {
			f.report(err)
		}
		return nil
	})
}

func (f *FrozenSessions) every() time.Duration { return cmp.Or(f.Every, DefaultFrozenEvery) }

// report logs an error of a look. It warns once of an error that a retry cannot fix.
func (f *FrozenSessions) report(err error) {
	if SQLState(err) == notAllowed && !f.refused {
		f.refused = true
		f.Logger.Warn("the database lets no instance end the sessions of frozen ones: others wait until those run again", "error", err)
		return
	}
	f.Logger.Debug("looking for frozen sessions; will try again", "error", err)
}

// A login sees, and may end, only its own sessions. Only a session that has written or
// locked rows has a transaction id. An old state_change means that no statement and no
// answer passed for that long. Sessions that block no one are left alone.
const (
	asLoginSQL = `SET LOCAL ROLE NONE`
	frozenSQL  = `SELECT f.pid, f.xact_start, f.state, f.state_change, now() - f.state_change, c.bytes_processed, left(f.query, 60)
 FROM pg_stat_activity f LEFT JOIN pg_stat_progress_copy c ON c.pid = f.pid AND c.command = 'COPY FROM'
 WHERE f.datname = current_database() AND f.usename = session_user AND f.application_name = current_setting('application_name')
 AND f.backend_xid IS NOT NULL AND f.wait_event IN ('ClientRead', 'ClientWrite') AND f.state_change < now() - $1::interval`
	endSessionSQL = `SELECT pg_terminate_backend($1)
 WHERE EXISTS (SELECT FROM pg_stat_activity w WHERE w.wait_event_type = 'Lock' AND $1 = ANY (pg_blocking_pids(w.pid)))`
)

// lookTime bounds a look.
const lookTime = 5 * time.Second

// poll ends sessions that the previous poll saw waiting, too: a working session is
// hardly ever seen waiting twice.
func (f *FrozenSessions) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return pgx.BeginFunc(ctx, f.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, asLoginSQL); err != nil {
			return fmt.Errorf("becoming the login: %w", err)
		}
		rows, err := tx.Query(ctx, frozenSQL, f.every())
		if err != nil {
			return fmt.Errorf("reading sessions: %w", err)
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w waiting, err error) {
			return w, row.Scan(&w.pid, &w.since, &w.state, &w.changed, &w.waits, &w.copied, &w.query)
		})
		if err != nil {
			return fmt.Errorf("reading sessions: %w", err)
		}
		for _, w := range f.suspects(list, time.Now()) {
			if err := f.end(ctx, tx, w); err != nil {
				return err
			}
		}
		return nil
	})
}

// suspects records the sessions that wait, and returns those that wait for too long.
func (f *FrozenSessions) suspects(list []waiting, now time.Time) (found []waiting) {
	before := f.seen
	f.seen = make(map[frozen]waiting, len(list))
	for _, w := range list {
		was, again := before[w.frozen]
		w.still = now
		if again && was.changed.Equal(w.changed) && was.copied != nil && w.copied != nil && *was.copied == *w.copied {
			w.still = was.still
		}
		w.ended = was.ended
		f.seen[w.frozen] = w
		if again && !w.ended && f.isStuck(&w, now) {
			found = append(found, w)
		}
	}
	return found
}

func (f *FrozenSessions) isStuck(w *waiting, now time.Time) bool {
	after := cmp.Or(f.After, DefaultFrozen)
	switch {
	case w.state != "active":
		return w.waits > after
	case w.copied != nil:
		return now.Sub(w.still) > after
	}
	return w.waits > cmp.Or(f.Answer, DefaultUntaken)
}

// end ends a session that blocks another one.
func (f *FrozenSessions) end(ctx context.Context, tx pgx.Tx, w waiting) error {
	tag, err := tx.Exec(ctx, endSessionSQL, w.pid)
	if err != nil {
		return fmt.Errorf("ending a session: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	w.ended = true
	f.seen[w.frozen] = w
	f.Logger.Warn("ended the session of an instance that is frozen in mid-transaction and kept others waiting", "pid", w.pid, "waits",
		w.waits, "statement", w.query)
	if f.Ended != nil {
		f.Ended()
	}
	return nil
}
