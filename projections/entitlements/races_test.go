package entitlements_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
)

// loadBlocker blocks the next load after it has read its snapshot, or the next poll of
// the feed.
type loadBlocker struct {
	localtest.RoundTrips
	what            string        // part of the statement
	next            chan struct{} // has an element if a load is to be blocked
	held, letItCome chan struct{}
}

type loadBlockerKey struct{}

func (h *loadBlocker) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		if strings.Contains(q.SQL, h.what) {
			return context.WithValue(ctx, loadBlockerKey{}, true)
		}
	}
	return ctx
}

func (h *loadBlocker) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	if ctx.Value(loadBlockerKey{}) == nil {
		return
	}
	select {
	case <-h.next:
		close(h.held)
		<-h.letItCome
	default:
	}
}

// cacheRace is a grant fixture of one tenant, whose loads can be blocked.
type cacheRace struct {
	*grantFixture
	who   *grantTenant
	up    *loadBlocker
	reads *Reads // with a cache, empty at first
}

func newCacheRace(t *testing.T) *cacheRace {
	r := &cacheRace{
		grantFixture: newGrantFixture(NewPipeline(t), 1),
		up:           &loadBlocker{RoundTrips: func(*pgx.Conn, []string) {}, what: "entitlement_grants", next: make(chan struct{}, 1)},
	}
	r.who = r.tenants[0]
	config := r.Pool.Config()
	config.ConnConfig.Tracer = r.up
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	r.Must(err)
	t.Cleanup(pool.Close)
	r.reads = NewReads(query.DB{Pool: pool}, nil, r.Pipeline.Reads.Now)
	r.emptyCache()
	return r
}

func (r *cacheRace) emptyCache() {
	r.reads.Grants = entitlements.NewCache(r.reads.EntitlementReads.Pool, r.reads.EntitlementReads.Pool)
}

// tryAnswer returns the answer of a check.
func (r *cacheRace) tryAnswer(ctx context.Context, reads *Reads, w query.Wait) (string, error) {
	c, err := reads.Check(ctx, TenantViewer(r.who.id), r.who.id, "calls", 1, w)
	if err != nil {
		return "", err
	}
	return c.Used.String() + " of " + strconv.FormatInt(*c.Limit, 10), nil
}

// answer is asks without an error.
func (r *cacheRace) answer(ctx context.Context, reads *Reads, w query.Wait) string {
	r.Helper()
	said, err := r.tryAnswer(ctx, reads, w)
	r.Must(err)
	return said
}

// cachedAnswer fails if the check waits for a blocked load.
func (r *cacheRace) cachedAnswer() string {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		said, err := r.tryAnswer(ctx, r.reads, query.Wait{})
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			continue // a poll took too long
		}
		r.Must(err)
		return said
	}
}

func (r *cacheRace) tableAnswer() string {
	r.Helper()
	return r.answer(context.Background(), r.Pipeline.Reads, query.Wait{})
}

// blockLoad starts a check and blocks its load until release is called, which returns
// the check's answer, or an error if the load was blocked for longer than its time
// limit.
func (r *cacheRace) blockLoad() (release func() (string, error)) {
	r.up.held, r.up.letItCome = make(chan struct{}), make(chan struct{})
	r.up.next <- struct{}{}
	said, failed := "", make(chan error, 1)
	held := r.up.letItCome
	letItCome := sync.OnceFunc(func() { close(held) })
	r.Cleanup(letItCome) // or closing the pool waits for the load
	go func() {
		var err error
		said, err = r.tryAnswer(context.Background(), r.reads, query.Wait{})
		failed <- err
	}()
	<-r.up.held
	return func() (string, error) {
		letItCome()
		err := <-failed
		return said, err
	}
}

// appendNeighboursEvents appends more of a neighbour's events than a poll scans.
func (r *cacheRace) appendNeighboursEvents() {
	neighbour := TenantIn(events.PartitionOf(r.who.id))
	for range 9 {
		batch := make([]events.Pending, 1000)
		for i := range batch {
			batch[i] = Usage(neighbour, NewID().String(), "calls", 1, May)
		}
		r.Append(batch...)
	}
	r.recordUsage(r.who, 9)
}

// A change during a load is seen by every check after the change was confirmed,
// even if the load returns last.
func TestOvertakenLoadsAreNotCached(t *testing.T) {
	r := newCacheRace(t)
	for what, change := range map[string]func(){
		"usage":                          func() { r.recordUsage(r.who, 7) },
		"subscription":                   func() { r.change(r.who) },
		"flip":                           r.flip,
		"more than a look looks through": r.appendNeighboursEvents,
	} {
		for _, askedMeanwhile := range []bool{true, false}[:tier.Draws(t, 1, 2)] {
			for proved, tries := false, 0; !proved; tries++ {
				if proved = r.changeDuringLoad(what, change, askedMeanwhile); !proved && tries > 10 {
					t.Fatalf("%s: no load came back in its time", what)
				}
			}
		}
	}
}

// changeDuringLoad makes a change while a load is blocked; false if the load was blocked
// for too long to return.
func (r *cacheRace) changeDuringLoad(what string, change func(), askedMeanwhile bool) bool {
	r.Helper()
	r.emptyCache()
	before, release := r.tableAnswer(), r.blockLoad()
	change()
	r.Settle()
	confirmUntilSuccess(r.grantFixture.Pipeline, r.reads)
	after := r.tableAnswer()
	if askedMeanwhile {
		if got := r.cachedAnswer(); got != after || after == before {
			r.Errorf("%s: while a load was held %s, want %s, not %s", what, got, after, before)
		}
	}
	got, err := release()
	if err != nil {
		r.Log(what, err)
		return false
	}
	if got != before {
		r.Errorf("%s: the load brought %s, want %s", what, got, before)
	}
	if got := r.cachedAnswer(); got != after {
		r.Errorf("%s: after the load came back %s, want %s; asked meanwhile: %v", what, got, after, askedMeanwhile)
	}
	return true
}

// A check at a position is not answered by a load that began before the position,
// and older grants do not replace newer ones in the cache.
func TestAPositionIsNotAnsweredByAnOlderLoad(t *testing.T) {
	r := newCacheRace(t)
	r.recordUsage(r.who, 3)
	r.Drain(r.Validating)
	release := r.blockLoad()
	r.Drain(r.Entitling) // at best before the feed polls again and notifies the load
	at := events.Position{Partition: events.PartitionOf(r.who.id), Number: r.who.usage[len(r.who.usage)-1].at}
	answered := make(chan string, 1)
	go func() { answered <- r.answer(context.Background(), r.reads, query.Wait{MinPosition: &at}) }()
	select {
	case got := <-answered:
		if got != r.tableAnswer() {
			t.Errorf("at %s %s, want %s", at, got, r.tableAnswer())
		}
	case <-time.After(time.Minute):
		t.Errorf("who asked for %s waits for a load that began before it", at)
	}
	_, _ = release() // late or not
	if got := r.cachedAnswer(); got != r.tableAnswer() {
		t.Errorf("what is older was kept over what is newer: %s, want %s", got, r.tableAnswer())
	}
}

// A confirmation running while an event is folded misses the event: a later caller
// does not share that confirmation.
func TestAnEarlierPollConfirmsNoLaterLoad(t *testing.T) {
	r := newCacheRace(t)
	r.up.what = "pg_postmaster_start_time"
	for proved := false; !proved; {
		r.emptyCache()
		r.recordUsage(r.who, 3)
		r.Drain(r.Validating)
		before := r.cachedAnswer()
		r.up.held, r.up.letItCome = make(chan struct{}), make(chan struct{})
		r.up.next <- struct{}{}
		looked, confirmed := make(chan error, 1), make(chan error, 1)
		go func() { looked <- r.reads.Confirm(context.Background()) }()
		<-r.up.held
		r.Drain(r.Entitling)
		go func() { confirmed <- r.reads.Confirm(context.Background()) }()
		time.Sleep(10 * time.Millisecond) // it finds the running poll
		close(r.up.letItCome)
		if err := errors.Join(<-looked, <-confirmed); err != nil {
			t.Log(err) // the poll was blocked beyond its time limit
			continue
		}
		proved = true
		if got, after := r.cachedAnswer(), r.tableAnswer(); got != after || after == before {
			t.Errorf("confirmed, and still %s, want %s; before it %s", got, after, before)
		}
	}
}

// Checks that wait for a position and find no entry new enough share a load: the
// running one began too early for them, the one after it serves all.
func TestChecksAtAPositionShareALoad(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Quota("calls", 100, domain.LimitHard, domain.ResetMonthly))
	at := s.Append(Usage(tenant, "a", "calls", 1, May))[0]
	s.Settle()
	cfg := s.Pool.Config()
	var loads atomic.Int64
	cfg.ConnConfig.Tracer = localtest.RoundTrips(func(_ *pgx.Conn, statements []string) {
		if strings.Contains(strings.Join(statements, "\n"), "LEFT JOIN entitlement_grants") {
			loads.Add(1)
		}
	})
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	s.Must(err)
	defer pool.Close()
	cache := entitlements.NewCache(s.Pool, pool)
	reads := NewReads(query.DB{Pool: s.Pool}, cache, s.Reads.Now)
	hold, err := s.Pool.Begin(t.Context()) // blocks the first load
	s.Must(err)
	defer func() { _ = hold.Rollback(context.Background()) }()
	s.Must(Second(hold.Exec(t.Context(), `LOCK TABLE entitlement_grants IN ACCESS EXCLUSIVE MODE`)))
	var g errgroup.Group
	for range 60 {
		g.Go(func() error {
			c, err := reads.Check(t.Context(), TenantViewer(tenant), tenant, "calls", 1, query.Wait{MinPosition: &at, For: time.Minute})
			if err == nil && (!c.Allowed || c.Used.String() != "1" || c.AsOf.Number < at.Number) {
				t.Errorf("%+v", c)
			}
			return err
		})
	}
	s.Until(func() bool { return s.LockWaiters() > 0 })
	time.Sleep(100 * time.Millisecond) // more of them wait
	s.Must(hold.Rollback(context.Background()))
	s.Must(g.Wait())
	if n := loads.Load(); n == 0 || n > 6 {
		t.Errorf("%d loads for 60 checks", n)
	}
}
