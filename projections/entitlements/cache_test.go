package entitlements_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
)

// perGeneration is added to the figures of each new generation of the grant fixture, so that
// an answer identifies its generation.
const perGeneration = 1_000_000

// grantFixture is tenants whose usage and limits change while others check them.
type grantFixture struct {
	*Pipeline
	mu      sync.Mutex
	tenants []*grantTenant
	shown   int // generations that a flip has begun to show, and
	settled int // has shown before the last Confirm
}

// grantTenant is a tenant with its events in the log. The n-th version of its
// subscription has the limit 10n.
type grantTenant struct {
	id       uuid.UUID
	sub      domain.Subscription
	usage    []usedAmount
	versions []int64 // positions of the subscription's versions
	floor    int64   // all of it up to here was folded before the last Confirm
	floorAt  int     // the version then
}

type usedAmount struct {
	at     int64
	amount int64
}

func newGrantFixture(s *Pipeline, tenants int) *grantFixture {
	m := &grantFixture{Pipeline: s}
	for i := range tenants {
		t := &grantTenant{id: NewID()}
		t.sub = domain.Subscription{ID: NewID(), TenantID: t.id, Plan: "p", Status: domain.SubscriptionActive, CreatedAt: May}
		m.tenants = append(m.tenants, t)
		m.change(t)
		m.recordUsage(t, int64(1000*(i+1)))
	}
	s.Settle()
	m.confirm()
	return m
}

// change appends the next version of a tenant's subscription.
func (m *grantFixture) change(t *grantTenant) {
	t.sub.Entitlements = []domain.Grant{Quota("calls", int64(10*(len(t.versions)+1)), domain.LimitSoft, domain.ResetMonthly)}
	subject := events.SubscriptionChanged
	if len(t.versions) == 0 {
		subject = events.SubscriptionCreated
		m.SubscriptionHistory(t.id, May, &t.sub)
		t.versions = append(t.versions, m.Head(t.id).Number)
		return
	}
	at := m.Append(Plain(t.id, subject, events.Counts{}, t.sub))[0].Number
	m.mu.Lock()
	defer m.mu.Unlock()
	t.versions = append(t.versions, at)
}

// recordUsage records usage before any check can return it.
func (m *grantFixture) recordUsage(t *grantTenant, amount int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.Append(Usage(t.id, NewID().String(), "calls", amount, May))[0].Number
	t.usage = append(t.usage, usedAmount{at, amount})
}

// flip shows a new generation.
func (m *grantFixture) flip() {
	m.Helper()
	m.mu.Lock()
	m.shown++
	m.mu.Unlock()
	m.Must(Second(m.Pool.Exec(context.Background(), `
		WITH old AS (SELECT p.generation, p.flip, g.fold_version FROM projection_pointers p JOIN projection_generations g USING (projection,
		generation) WHERE p.projection = 'entitlement_reads' AND p.live),
		made AS (INSERT INTO projection_generations (projection, generation, fold_version) SELECT 'entitlement_reads', generation + 1,
		fold_version FROM old),
		grants AS (INSERT INTO entitlement_grants SELECT o.generation + 1, g.tenant_id, g.feature, g.subscription_id, g.type, g.unit,
		g."limit", g.limit_behavior, g.reset_period, g.on_ingest
			FROM entitlement_grants g, old o WHERE g.generation = o.generation),
		used AS (INSERT INTO entitlement_usage SELECT o.generation + 1, u.tenant_id, u.feature, u.period_key, u.used + 1000000
		FROM entitlement_usage u, old o WHERE u.generation = o.generation),
		fed AS (INSERT INTO consumer_checkpoints (consumer, generation, partition, epoch, position)
			SELECT c.consumer, o.generation + 1, c.partition, c.epoch, c.position FROM consumer_checkpoints c, old o
			WHERE c.consumer = 'meterplex-entitlement-reads' AND c.generation = o.generation),
		unfed AS (UPDATE consumer_checkpoints c SET joined = false FROM old o WHERE c.consumer = 'meterplex-entitlement-reads'
		AND c.generation < o.generation),
		hidden AS (UPDATE projection_pointers SET live = false WHERE projection = 'entitlement_reads')
		INSERT INTO projection_pointers (projection, tenant_id, generation, flip)
		SELECT 'entitlement_reads', '00000000-0000-0000-0000-000000000000', generation + 1, flip + 1 FROM old`)))
}

// confirm confirms the cache, and records the oldest position an answer may have.
// Recorded events may not be folded yet.
func (m *grantFixture) confirm() {
	m.Helper()
	floors := make([]int64, len(m.tenants))
	versions := make([]int, len(m.tenants))
	shown := m.shown
	for i, t := range m.tenants {
		c, err := m.Reads.Check(context.Background(), TenantViewer(t.id), t.id, "calls", 1, query.Wait{})
		m.Must(err)
		floors[i], versions[i] = c.AsOf.Number, int(*c.Limit/10)
		// A neighbour's events move the position too; the cache has the tenant's own.
		for j := len(t.usage) - 1; j >= 0; j-- {
			if t.usage[j].at <= floors[i] {
				floors[i] = t.usage[j].at
				break
			}
		}
	}
	confirmUntilSuccess(m.Pipeline, m.Cached)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = shown
	for i, t := range m.tenants {
		t.floor, t.floorAt = floors[i], versions[i]
	}
}

// confirmUntilSuccess repeats a cache's confirmation until it succeeds: one that takes too
// long fails.
func confirmUntilSuccess(s *Pipeline, reads *Reads) {
	s.Helper()
	for until := time.Now().Add(time.Minute); ; {
		err := reads.Confirm(context.Background())
		if err == nil {
			return
		}
		if time.Now().After(until) {
			s.Fatal(err)
		}
	}
}

// checkAnswer checks a tenant and compares the answer with the log at the position it names.
func (m *grantFixture) checkAnswer(t *grantTenant) error {
	m.mu.Lock()
	floor, floorAt, settled := t.floor, t.floorAt, m.settled
	asked := t.usage[rand.IntN(len(t.usage))].at
	m.mu.Unlock()
	var wait query.Wait
	if rand.IntN(3) == 0 {
		wait.MinPosition = &events.Position{Partition: events.PartitionOf(t.id), Number: asked}
	}
	c, err := m.Cached.Check(context.Background(), TenantViewer(t.id), t.id, "calls", 1, wait)
	if errors.Is(err, query.ErrProjectionBehind) && asked > floor {
		return nil
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := int64(0)
	for _, u := range t.usage {
		if u.at <= c.AsOf.Number {
			sum += u.amount
		}
	}
	said, err := strconv.ParseInt(c.Used.String(), 10, 64)
	generation := int((said - sum) / perGeneration)
	version := int(*c.Limit / 10)
	switch {
	case err != nil:
		return err
	case wait.MinPosition != nil && c.AsOf.Number < asked:
		return fmt.Errorf("asked for %d, answered at %d", asked, c.AsOf.Number)
	case said != sum+perGeneration*int64(generation) || generation < settled || generation > m.shown:
		return fmt.Errorf("used %d at %d, where the log says %d; generations %d to %d", said, c.AsOf.Number, sum, settled, m.shown)
	case c.AsOf.Number < floor:
		return fmt.Errorf("answered at %d after %d was confirmed", c.AsOf.Number, floor)
	case version < floorAt || version < len(t.versions) && t.versions[version] <= c.AsOf.Number:
		return fmt.Errorf("version %d of the subscription at %d, of %v; %d was confirmed", version, c.AsOf.Number, t.versions, floorAt)
	}
	return nil
}

// P9, and the contract of asOfPosition and minPosition: with concurrent recording,
// folding, flips and checks, each answer matches the log at the position that it
// names, for that tenant alone, and is not older than the confirmed or requested
// position.
func TestP9_CachedChecksAreTrueAtTheirPosition(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewPipeline(t)
	ctx, stop := context.WithCancel(context.Background())
	running := make(chan error, 1)
	go func() { running <- s.Cached.Grants.Run(ctx) }()
	defer func() { stop(); s.Must(<-running) }()
	var answered atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		m := newGrantFixture(s, 3)
		var faults sync.Map
		done := make(chan struct{})
		var checking sync.WaitGroup
		for range 3 {
			checking.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					err := m.checkAnswer(m.tenants[rand.IntN(len(m.tenants))])
					if errors.Is(err, context.DeadlineExceeded) {
						continue // the database took too long: no answer
					}
					if err != nil {
						faults.Store(err.Error(), true)
						return
					}
					answered.Add(1)
				}
			})
		}
		for range rapid.IntRange(4, 10).Draw(rt, "steps") {
			who := m.tenants[rapid.IntRange(0, len(m.tenants)-1).Draw(rt, "tenant")]
			switch rapid.SampledFrom([]string{"use", "use", "use", "change", "validate", "fold", "fold", "flip"}).Draw(rt, "step") {
			case "use":
				m.recordUsage(who, rapid.Int64Range(1, 9).Draw(rt, "amount"))
			case "change":
				m.change(who)
			case "validate":
				m.Drain(m.Validating)
			case "fold":
				m.Drain(m.Validating, m.Entitling)
				m.confirm()
			case "flip":
				m.flip()
				m.confirm()
			}
		}
		close(done)
		checking.Wait()
		faults.Range(func(fault, _ any) bool { rt.Fatal(fault); return false })
	})
	if answered.Load() == 0 {
		t.Error("nothing was answered: that shows nothing")
	}
}

// A tenant's cache entry is never shown to another tenant.
func TestP9_CachedChecksAreTheTenantsOwn(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	neighbour := TenantIn(events.PartitionOf(tenant))
	s.Subscribe(tenant, May, Quota("calls", 10, domain.LimitHard, domain.ResetMonthly))
	s.Settle()
	for range 2 { // read, then cached
		own, err := s.Cached.Check(t.Context(), TenantViewer(tenant), tenant, "calls", 1, query.Wait{})
		if err != nil || !own.Allowed {
			t.Fatalf("%+v %v", own, err)
		}
		for _, v := range []query.Viewer{TenantViewer(neighbour), {}} {
			for _, of := range []uuid.UUID{tenant, neighbour} {
				c, err := s.Cached.Check(t.Context(), v, of, "calls", 1, query.Wait{})
				if err != nil || c.Allowed || c.Limit != nil {
					t.Errorf("%v sees %v: %+v %v", v, of, c, err)
				}
			}
		}
	}
}

// Neither unknown features nor a warm cache cost a statement, and the end of a
// period expires its cache entries.
func TestCachedChecksCostNoStatement(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Quota("calls", 10, domain.LimitHard, domain.ResetMonthly))
	_, err := s.Pool.Exec(t.Context(), `INSERT INTO subscriptions VALUES ($1, $2, 'p', 'ACTIVE', '[]', now(), now())`, NewID(), tenant)
	s.Must(err)
	s.Append(Usage(tenant, "e", "calls", 7, May))
	s.Settle()
	check := func(feature string) entitlements.Check {
		c, err := s.Cached.Check(t.Context(), TenantViewer(tenant), tenant, feature, 1, query.Wait{})
		s.Must(err)
		return c
	}
	check("calls")
	check("unknown")
	before, began := s.Pool.Stat().AcquireCount(), time.Now()
	for i := range 10_000 {
		if c := check("calls"); c.Used.String() != "7" {
			t.Fatalf("%+v", c)
		}
		if c := check(fmt.Sprint("unknown", i)); c.Reason != entitlements.ReasonFeatureNotFound {
			t.Fatalf("%+v", c)
		}
	}
	// One confirmation per 100 ms, since the feed does not run here.
	if took, taken := time.Since(began), s.Pool.Stat().AcquireCount()-before; taken > 1+int64(took/(100*time.Millisecond)) {
		t.Errorf("%d connections were taken in %v", taken, took)
	}
	s.Now = May.AddDate(0, 1, 0)
	if c := check("calls"); c.Used.String() != "0" || !c.ResetAt.Equal(May.AddDate(0, 2, 0)) {
		t.Errorf("a new month begins at 0: %+v", c)
	}
}

// The cache is bounded, however many tenants use it.
func TestCachedGrantsAreBounded(t *testing.T) {
	s := NewPipeline(t)
	grants := make([]domain.Grant, 999)
	for i := range grants {
		grants[i] = Grant(fmt.Sprintf("f%03d", i), domain.ResetNever)
	}
	tenants := make([]uuid.UUID, 12)
	for i := range tenants {
		tenants[i] = TenantIn(3)
		s.Subscribe(tenants[i], May, grants...)
	}
	s.Settle()
	for range 2 {
		for _, tenant := range tenants {
			list, err := s.Cached.Entitlements(t.Context(), TenantViewer(tenant), tenant, query.Wait{})
			if err != nil || len(list.Data) != len(grants) {
				t.Fatalf("%d grants %v", len(list.Data), err)
			}
		}
	}
	if kept := s.Cached.Grants.Kept(); kept != 10 {
		t.Errorf("%d tenants are kept, of whom 10 have room", kept)
	}
}
