package projections_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections/query"
)

// timedReads is a pool of reads with one session, and a tenant's view of it.
type timedReads struct {
	*logFixture
	pool  *pgxpool.Pool
	db    query.DB
	v     query.Viewer
	login *pgx.Conn // sees the statements of all its sessions
}

func newTimedReads(t *testing.T, timeout time.Duration) *timedReads {
	r := &timedReads{logFixture: newLogFixture(t), v: tenantViewer(newID())}
	var err error
	r.pool, err = postgres.Open(t.Context(), postgres.Config{URL: r.url, MaxConns: 1, ApplicationName: "reads", StatementTimeout: timeout})
	r.must(err)
	t.Cleanup(r.pool.Close)
	r.login, err = pgx.Connect(t.Context(), r.url)
	r.must(err)
	t.Cleanup(func() { _ = r.login.Close(context.Background()) })
	r.db = query.DB{Pool: r.pool, Seats: query.NewSeats(1, 0)}
	return r
}

// ways are both ways to read, each with one statement.
func (r *timedReads) ways() map[string]func(ctx context.Context, sql string) error {
	nothing := query.Each(func(pgx.Rows) error { return nil })
	return map[string]func(ctx context.Context, sql string) error{
		"a snapshot": func(ctx context.Context, sql string) error {
			return r.db.Snapshot(ctx, r.v, query.New(sql, nil, nothing))
		},
		"steps": func(ctx context.Context, sql string) error {
			return r.db.Within(ctx, r.v, func(tx pgx.Tx) error { return query.Run(ctx, tx, query.New(sql, nil, nothing)) })
		},
	}
}

// sameSession checks that the next read is answered by the pool's first session, and that no read
// holds anything.
func (r *timedReads) sameSession(way string, read func(ctx context.Context, sql string) error) {
	r.Helper()
	err := query.ErrOverloaded
	for errors.Is(err, query.ErrOverloaded) { // on a busy machine
		err = read(context.Background(), `SELECT 1`)
	}
	if err != nil {
		r.Errorf("the read after %s: %v", way, err)
	}
	if s := r.pool.Stat(); s.NewConnsCount() != 1 || s.AcquiredConns() != 0 || r.db.Seats.InUse() != 0 {
		r.Errorf("after %s: %d sessions were opened, %d are in use, %d seats taken", way, s.NewConnsCount(), s.AcquiredConns(), r.db.Seats.InUse())
	}
}

const forever = `SELECT pg_sleep(3600)`

// A read beyond the time of a statement is refused as overload, and its session serves the next read.
func TestReadsBeyondTheirTimeAreRefused(t *testing.T) {
	r := newTimedReads(t, 100*time.Millisecond)
	for way, read := range r.ways() {
		err := read(t.Context(), forever)
		var refused *domain.Error
		if !errors.Is(err, query.ErrOverloaded) || !errors.As(err, &refused) || refused.Code != "overloaded" {
			t.Errorf("%s: %v", way, err)
		}
		r.sameSession(way, read)
	}
}

// A read whose caller is gone is ended on the server, and its session serves the next read.
func TestReadsOfCallersThatAreGoneEnd(t *testing.T) {
	r := newTimedReads(t, time.Hour)
	for way, read := range r.ways() {
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- read(ctx, forever) }()
		r.untilRunning(1)
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, query.ErrOverloaded) {
			t.Errorf("%s: %v", way, err)
		}
		r.untilRunning(0)
		r.sameSession(way, read)
	}
}

// untilRunning waits until a number of endless statements runs.
func (r *timedReads) untilRunning(want int) {
	r.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var n int
		r.must(r.login.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'active' AND query = $1`, forever).Scan(&n))
		if n == want {
			return
		}
		if time.Now().After(end) {
			r.Fatalf("%d endless statements run, not %d", n, want)
		}
	}
}
