package projections_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
)

// holdUp blocks the next load after it has read its snapshot, or the next poll of
// the feed.
type holdUp struct {
	what            string        // part of the statement
	next            chan struct{} // has an element if a load is to be blocked
	held, letItCome chan struct{}
}

type holdUpKey struct{}

func (h *holdUp) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (h *holdUp) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (h *holdUp) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (h *holdUp) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		if strings.Contains(q.SQL, h.what) {
			return context.WithValue(ctx, holdUpKey{}, true)
		}
	}
	return ctx
}

func (h *holdUp) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	if ctx.Value(holdUpKey{}) == nil {
		return
	}
	select {
	case <-h.next:
		close(h.held)
		<-h.letItCome
	default:
	}
}

// race is a market of one tenant, whose loads can be blocked.
type race struct {
	*market
	who   *trader
	up    *holdUp
	reads *reads // with a cache, empty at first
}

func newRace(t *testing.T) *race {
	r := &race{market: newMarket(newScene(t), 1), up: &holdUp{what: "entitlement_grants", next: make(chan struct{}, 1)}}
	r.who = r.tenants[0]
	config := r.pool.Config()
	config.ConnConfig.Tracer = r.up
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	r.must(err)
	t.Cleanup(pool.Close)
	r.reads = newReads(query.DB{Pool: pool}, nil, r.scene.reads.Now)
	r.empty()
	return r
}

func (r *race) empty() {
	r.reads.Grants = entitlements.NewCache(r.reads.entitlementReads.Pool, r.reads.entitlementReads.Pool)
}

// asks returns the answer of a check.
func (r *race) asks(ctx context.Context, reads *reads, w query.Wait) (string, error) {
	c, err := reads.Check(ctx, tenantEyes(r.who.id), r.who.id, "calls", 1, w)
	if err != nil {
		return "", err
	}
	return c.Used.String() + " of " + strconv.FormatInt(*c.Limit, 10), nil
}

// says is asks without an error.
func (r *race) says(ctx context.Context, reads *reads, w query.Wait) string {
	r.Helper()
	said, err := r.asks(ctx, reads, w)
	r.must(err)
	return said
}

// cachedSays fails if the check waits for a blocked load.
func (r *race) cachedSays() string {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		said, err := r.asks(ctx, r.reads, query.Wait{})
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			continue // a poll took too long
		}
		r.must(err)
		return said
	}
}

func (r *race) tableSays() string {
	r.Helper()
	return r.says(context.Background(), r.scene.reads, query.Wait{})
}

// hold starts a check and blocks its load until release is called, which returns
// the check's answer, or an error if the load was blocked for longer than its time
// limit.
func (r *race) hold() (release func() (string, error)) {
	r.up.held, r.up.letItCome = make(chan struct{}), make(chan struct{})
	r.up.next <- struct{}{}
	said, failed := "", make(chan error, 1)
	held := r.up.letItCome
	letItCome := sync.OnceFunc(func() { close(held) })
	r.Cleanup(letItCome) // or closing the pool waits for the load
	go func() {
		var err error
		said, err = r.asks(context.Background(), r.reads, query.Wait{})
		failed <- err
	}()
	<-r.up.held
	return func() (string, error) {
		letItCome()
		err := <-failed
		return said, err
	}
}

// crowd appends more of a neighbour's events than a poll scans.
func (r *race) crowd() {
	neighbour := tenantIn(events.PartitionOf(r.who.id))
	for range 9 {
		batch := make([]events.Pending, 1000)
		for i := range batch {
			batch[i] = usageEvent(neighbour, newID().String(), "calls", 1, may)
		}
		r.append(batch...)
	}
	r.use(r.who, 9)
}

// A change during a load is seen by every check after the change was confirmed,
// even if the load returns last.
func TestALoadThatIsOvertakenIsNotKept(t *testing.T) {
	r := newRace(t)
	for what, change := range map[string]func(){
		"usage":                          func() { r.use(r.who, 7) },
		"subscription":                   func() { r.change(r.who) },
		"flip":                           r.flip,
		"more than a look looks through": r.crowd,
	} {
		for _, askedMeanwhile := range []bool{true, false} {
			for proved, tries := false, 0; !proved; tries++ {
				if proved = r.isOvertaken(what, change, askedMeanwhile); !proved && tries > 10 {
					t.Fatalf("%s: no load came back in its time", what)
				}
			}
		}
	}
}

// isOvertaken makes a change while a load is blocked; false if the load was blocked
// for too long to return.
func (r *race) isOvertaken(what string, change func(), askedMeanwhile bool) bool {
	r.Helper()
	r.empty()
	before, release := r.tableSays(), r.hold()
	change()
	r.settle()
	r.confirmed(r.reads)
	after := r.tableSays()
	if askedMeanwhile {
		if got := r.cachedSays(); got != after || after == before {
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
	if got := r.cachedSays(); got != after {
		r.Errorf("%s: after the load came back %s, want %s; asked meanwhile: %v", what, got, after, askedMeanwhile)
	}
	return true
}

// A check at a position is not answered by a load that began before the position,
// and older grants do not replace newer ones in the cache.
func TestAPositionIsNotAnsweredByAnOlderLoad(t *testing.T) {
	r := newRace(t)
	r.use(r.who, 3)
	r.drain(r.validating)
	release := r.hold()
	r.drain(r.entitling) // at best before the feed polls again and notifies the load
	at := events.Position{Partition: events.PartitionOf(r.who.id), Number: r.who.usage[len(r.who.usage)-1].at}
	answered := make(chan string, 1)
	go func() { answered <- r.says(context.Background(), r.reads, query.Wait{MinPosition: &at}) }()
	select {
	case got := <-answered:
		if got != r.tableSays() {
			t.Errorf("at %s %s, want %s", at, got, r.tableSays())
		}
	case <-time.After(10 * time.Second):
		t.Errorf("who asked for %s waits for a load that began before it", at)
	}
	_, _ = release() // late or not
	if got := r.cachedSays(); got != r.tableSays() {
		t.Errorf("what is older was kept over what is newer: %s, want %s", got, r.tableSays())
	}
}

// A confirmation running while an event is folded misses the event: a later caller
// does not share that confirmation.
func TestALookThatBeganBeforeConfirmsNothing(t *testing.T) {
	r := newRace(t)
	r.up.what = "pg_postmaster_start_time"
	for proved := false; !proved; {
		r.empty()
		r.use(r.who, 3)
		r.drain(r.validating)
		before := r.cachedSays()
		r.up.held, r.up.letItCome = make(chan struct{}), make(chan struct{})
		r.up.next <- struct{}{}
		looked, confirmed := make(chan error, 1), make(chan error, 1)
		go func() { looked <- r.reads.Confirm(context.Background()) }()
		<-r.up.held
		r.drain(r.entitling)
		go func() { confirmed <- r.reads.Confirm(context.Background()) }()
		time.Sleep(10 * time.Millisecond) // it finds the running poll
		close(r.up.letItCome)
		if err := errors.Join(<-looked, <-confirmed); err != nil {
			t.Log(err) // the poll was blocked beyond its time limit
			continue
		}
		proved = true
		if got, after := r.cachedSays(), r.tableSays(); got != after || after == before {
			t.Errorf("confirmed, and still %s, want %s; before it %s", got, after, before)
		}
	}
}

// Grants that the feed saw overtaken are served during their reload, but no longer
// than an answer may be behind, even if the reload is slow.
func TestWhatIsOvertakenIsToldForAMomentOnly(t *testing.T) {
	r := newRace(t)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.reads.Grants.Run(ctx) }()
	defer func() { stop(); r.must(<-done) }()
	for range 5 {
		before := r.cachedSays()
		if got := r.cachedSays(); got != before {
			t.Fatalf("%s, then %s", before, got)
		}
		r.up.held, r.up.letItCome = make(chan struct{}), make(chan struct{})
		r.up.next <- struct{}{}
		released := make(chan struct{})
		time.AfterFunc(300*time.Millisecond, func() { close(r.up.letItCome); close(released) })
		r.use(r.who, 3)
		r.drain(r.validating)
		r.drain(r.entitling)
		folded := time.Now()
		after := r.tableSays()
		for r.cachedSays() != after {
			if late := time.Since(folded); late > 2*time.Second {
				t.Fatalf("%v later still %s", late, before)
			}
		}
		select {
		case <-r.up.held:
		case <-r.up.next: // it was read before it could be blocked
		}
		<-released
	}
}
