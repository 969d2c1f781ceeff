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

	After  time.Duration // that a session waits for its client, 0: DefaultFrozen
	Answer time.Duration // that it waits for an answer to be taken, 0: DefaultUntaken
	Every  time.Duration // how often it looks, 0: DefaultFrozenEvery

	seen    map[frozen]waiting // by the look before
	refused bool               // it was told that sessions cannot be ended
}

// A statement of ours has its client's whole attention: the longest wait for one is
// some milliseconds, on a machine that swaps perhaps a second. A COPY over a slow link
// takes what it takes, but shows that it gets on. A long answer does not show it.
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

// waiting is a session that waits for its client.
type waiting struct {
	frozen
	state   string
	changed time.Time     // the state, as the server says
	waits   time.Duration // since then
	copied  *int64        // bytes of the COPY that it takes; nil: it takes none
	query   string
	still   time.Time // when it was first seen with so many bytes
	ended   bool      // it was told to end, which may take a busy server a while
}

// Run looks until the context ends.
func (f *FrozenSessions) Run(ctx context.Context) error {
	ticker := time.NewTicker(f.every())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := f.look(ctx); err != nil && ctx.Err() == nil {
			f.report(err)
		}
	}
}

func (f *FrozenSessions) every() time.Duration { return cmp.Or(f.Every, DefaultFrozenEvery) }

// report warns once of what trying again cannot mend.
func (f *FrozenSessions) report(err error) {
	if sqlState(err) == notAllowed && !f.refused {
		f.refused = true
		f.Logger.Warn("the database lets nobody end sessions of frozen instances: others wait until those run again", "error", err)
		return
	}
	f.Logger.Debug("looking for frozen sessions; will try again", "error", err)
}

// Who is seen and may be ended are the sessions of the same login. Only one that has
// written or locked rows has a transaction id; only one that has neither been asked
// nor answered for so long has an old state_change. Whom nobody waits for is left alone.
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

// look ends those that were seen by the look before, too: one that works is hardly
// found waiting twice.
func (f *FrozenSessions) look(ctx context.Context) error {
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

// suspects notes who waits at a time and gives those who wait for too long.
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

// end ends a session that somebody waits for.
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
	f.Logger.Warn("ended the session of an instance that is frozen in mid-transaction and kept others waiting", "pid", w.pid, "waits", w.waits, "statement", w.query)
	if f.Ended != nil {
		f.Ended()
	}
	return nil
}
