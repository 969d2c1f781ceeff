package prometheus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/projections/overview"
)

// headsSQL reads the backlog from the database, so that every instance reports it: an instance that
// relays no partition would report 0 otherwise. A rewind moves a cursor back; furthest is the cursor before it. The oldest event is read
// for each cursor (LATERAL): a statement without parameters keeps the plan that a session made while the log was empty, which as a join reads
// all of it.
const headsSQL = `SELECT sum(h.position)::bigint, sum(greatest(h.position - greatest(c.position, c.furthest), 0))::bigint,
 greatest(coalesce(extract(epoch FROM clock_timestamp() - min(l.recorded_at)), 0), 0)::float8
 FROM log_heads h JOIN relay_cursors c USING (partition)
 LEFT JOIN LATERAL (SELECT recorded_at FROM event_log_rows
   WHERE partition = c.partition AND position = greatest(c.position, c.furthest) + 1 LIMIT 1) l ON true`

// Backlog returns the number of events waiting for their first publication, as last read.
func (m *Metrics) Backlog() int64 { return m.backlog.Load() }

const (
	stateEvery = 2 * time.Second
	stateTime  = 2 * time.Second
	// serverEach is the number of state reads per read of the server's state.
	serverEach = 2
	// watchedEvery is how often heads and lags are read while someone views the overview.
	watchedEvery = time.Second
)

// Watch updates the gauges of the database state until ctx ends. Lag is counted in log positions,
// including those of other topics.
func (m *Metrics) Watch(ctx context.Context, pool *pgxpool.Pool) error {
	for n := 0; ; n++ {
		const ticks = int(stateEvery / watchedEvery)
		switch {
		case n%ticks == 0:
			m.readState(ctx, pool, n/ticks)
		case m.board.Watched() && m.read(ctx, pool) == nil && m.projected.readLag(ctx, pool) == nil:
			m.board.SetRead(time.Now())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(m.Ticks.Until(watchedEvery)):
		}
	}
}

// readState reads the state for the n-th time; parts of it that change slowly are read less often. On failure the gauges keep their
// values, and state_age_seconds grows.
func (m *Metrics) readState(ctx context.Context, pool *pgxpool.Pool, n int) {
	failed := errors.Join(m.read(ctx, pool), m.projected.read(ctx, pool), m.accounts.read(ctx, pool), m.readSagas(ctx, pool), m.readPushes(ctx, pool), m.readWebhooks(ctx, pool))
	if n%slowEach == 0 {
		failed = errors.Join(failed, m.readOpenLetters(ctx, pool, maxCounted), m.readDisabledWebhooks(ctx, pool))
	} else {
		failed = errors.Join(failed, m.readOpenLetters(ctx, pool, fewCounted))
	}
	if n%serverEach == 0 {
		failed = errors.Join(failed, m.server.read(ctx, pool))
	}
	m.board.SetAttention(overview.AccountDrift, overview.Item(overview.AccountDrift, "", m.accounts.drifting.Load(), nil, ""))
	if failed == nil {
		m.server.stateRead()
		m.board.SetRead(time.Now())
	}
}

func (m *Metrics) read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	var recorded, backlog int64
	var oldest float64
	if err := pool.QueryRow(ctx, headsSQL).Scan(&recorded, &backlog, &oldest); err != nil {
		return fmt.Errorf("reading the heads: %w", err)
	}
	m.head.Set(float64(recorded))
	m.unpublished.Set(float64(backlog))
	m.oldest.Set(oldest)
	m.backlog.Store(backlog)
	m.board.SetOutbox(overview.Backlog{Recorded: recorded, Unpublished: backlog, OldestSeconds: oldest}, time.Now())
	return nil
}
