package query_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

func TestListsAtAPositionContainEarlierFailures(t *testing.T) {
	s := NewPipeline(t)
	tenant := TenantIn(3)
	s.Subscribe(tenant, May, Quota("calls", -1, domain.LimitSoft, domain.ResetMonthly))
	at := s.Append(Usage(tenant, "good", "calls", 1, May), Usage(tenant, "bad", "nothing", 1, May))[1]
	wait := query.Wait{MinPosition: &at}
	lists := func() (usages, letters, conflicts error) {
		_, usages = s.Reads.UsageEvents(t.Context(), TenantViewer(tenant), audit.EventQuery{TenantID: tenant, Wait: wait})
		_, letters = s.Reads.DeadLetters(
			t.Context(),
			Operator,
			deadletters.Query{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant}, Wait: wait},
		)
		_, conflicts = s.Reads.Conflicts(t.Context(), TenantViewer(tenant), tenant, 10, "", wait)
		return usages, letters, conflicts
	}
	behind := func(when string) {
		t.Helper()
		a, b, c := lists()
		for _, err := range []error{a, b, c} {
			t.Log(when)
			RefusedAs(t, query.ErrProjectionBehind, err)
		}
	}
	behind("nothing is decided")
	s.Drain(s.Validating, s.Aggregating)
	behind("the rejection is not folded")
	s.Drain(s.Lettering)
	a, b, c := lists()
	s.Must(a)
	s.Must(b)
	s.Must(c)
	_, err := s.Reads.DeadLetters(t.Context(), Operator, deadletters.Query{Wait: wait})
	RefusedAs(t, query.ErrPositionInvalid, err)
}

func TestAReplicaAnswersUnlessAPositionIsNamed(t *testing.T) {
	s, late := NewPipeline(t), NewPipeline(t) // another database stands for a replica that is behind
	tenant := TenantIn(3)
	s.Subscribe(tenant, May, Quota("calls", -1, domain.LimitSoft, domain.ResetMonthly))
	at := s.Append(Usage(tenant, "e", "calls", 5, May))[0]
	s.Settle()
	s.Reads.SetReplica(late.Pool)
	figures := func(w query.Wait) int {
		t.Helper()
		page, err := s.Reads.Aggregates(t.Context(), TenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Wait: w})
		s.Must(err)
		list, err := s.Reads.UsageEvents(t.Context(), TenantViewer(tenant), audit.EventQuery{TenantID: tenant, Wait: w})
		s.Must(err)
		if len(page.Data) != len(list.Data) {
			t.Errorf("%d figures, %d events", len(page.Data), len(list.Data))
		}
		return len(page.Data)
	}
	if n := figures(query.Wait{}); n != 0 {
		t.Errorf("the replica was not asked: %d figures", n)
	}
	if n := figures(query.Wait{MinPosition: &at}); n != 1 {
		t.Errorf("a position was looked for on the replica: %d figures", n)
	}
}

// timedReads is a pool of reads with one session, and a tenant's view of it.
type timedReads struct {
	*Database
	pool  *pgxpool.Pool
	db    query.DB
	v     query.Viewer
	login *pgx.Conn // sees the statements of all its sessions
}

func newTimedReads(t *testing.T, timeout time.Duration) *timedReads {
	r := &timedReads{Database: NewDatabase(t), v: TenantViewer(NewID())}
	var err error
	r.pool, err = postgres.Open(t.Context(), postgres.Config{URL: r.URL, MaxConns: 1, ApplicationName: "reads", StatementTimeout: timeout})
	r.Must(err)
	t.Cleanup(r.pool.Close)
	r.login, err = pgx.Connect(t.Context(), r.URL)
	r.Must(err)
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
			return r.db.Within(ctx, r.v, func(ctx context.Context, tx pgx.Tx) error {
				return query.Run(ctx, tx, query.New(sql, nil, nothing))
			})
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
		r.Errorf(
			"after %s: %d sessions were opened, %d are in use, %d seats taken",
			way,
			s.NewConnsCount(),
			s.AcquiredConns(),
			r.db.Seats.InUse(),
		)
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
		r.Must(r.login.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'active' AND query = $1`, forever).Scan(&n))
		if n == want {
			return
		}
		if time.Now().After(end) {
			r.Fatalf("%d endless statements run, not %d", n, want)
		}
	}
}
