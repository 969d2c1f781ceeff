package entitlements

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Cache caches tenants' grants and usage, so that a check needs no statement. An
// entry holds the result of one snapshot under that tenant's own role, and stays valid
// until the projection folds another event of the tenant: the log itself names those
// tenants (cache_feed.go).
//
// Three rules keep it correct in every order of events. A load is notified of every change
// that the feed sees while it runs, and its result is cached only if it includes them.
// An entry is never replaced by an older one. And an answer needs a confirmation by the
// feed within confirmedFor.
type Cache struct {
	looks      query.DB // of the feed
	reads      Reads    // of loads; without a cache
	began      time.Time
	partitions [events.Partitions]grantPartition
	feed       grantFeed
	asked      struct {
		last atomicTime
		wake chan struct{}
	}
	checked atomicTime // the last check; keys and histories count, too
}

// Bounds of the cache, for each partition: a tenant uses one unit plus one for each
// grant, some 200 bytes each. 10,000 tenants with 10 grants use a third of it.
const maxGrantsKept = 10_000

const (
	// overtakenFor is how long an outdated entry may be returned, from the poll that found it.
	// With the time between two polls it bounds how far an answer is behind the projection.
	overtakenFor = maxUnconfirmed - feedEvery
	// maxReloads bounds how many tenants the feed reloads after a poll; others are loaded
	// on demand. The service's other work needs connections, too.
	maxReloads = 8
	// loadTime bounds a load, shareWithin how old a load may be to wait for it.
	loadTime    = 5 * time.Second
	shareWithin = maxUnconfirmed
)

// NewCache returns a cache that needs Run to be fast, not to be correct: without Run
// each answer that is not confirmed waits for the feed. Its polls, one at a time, use their
// own pool: reads that take all connections of the other pool must not leave cached answers
// unconfirmed, and loads must not delay writers.
func NewCache(looks, loads *pgxpool.Pool) *Cache {
	c := &Cache{looks: query.DB{Pool: looks}, reads: Reads{DB: query.DB{Pool: loads}}, began: time.Now()}
	c.asked.wake = make(chan struct{}, 1)
	for i := range c.partitions {
		c.partitions[i].kept = make(map[uuid.UUID]*granted)
		c.partitions[i].loads = make(map[uuid.UUID]*grantLoad)
		c.partitions[i].running = make(map[*grantLoad]struct{})
	}
	return c
}

// UseSeats lets loads hold the seats that their pool reserves for them. Call it before Run.
func (c *Cache) UseSeats(s *query.Seats) {
	c.reads.Seats = s
	c.reads.DB = *c.reads.ForChecks()
}

// grantPartition caches the tenants of one log partition.
type grantPartition struct {
	mu      sync.RWMutex
	folded  int64 // the feed has reported each change up to here
	kept    map[uuid.UUID]*granted
	size    int
	loads   map[uuid.UUID]*grantLoad // those that callers may wait for
	running map[*grantLoad]struct{}
}

// grantLoad is a load under way. Its result is cached only if it is folded at least up
// to atLeast.
type grantLoad struct {
	tenant  uuid.UUID
	began   time.Time
	now     time.Time
	atLeast int64
	done    chan struct{}
	before  *grantLoad // running when this one began; too early for this one's callers
	next    *grantLoad // begins after this one, for callers that need a later snapshot
	brought *granted
	err     error
}

func newGrantLoad(tenant uuid.UUID, now time.Time) *grantLoad {
	return &grantLoad{tenant: tenant, now: now, done: make(chan struct{})}
}

// isFor reports whether the load's result covers the current periods.
func (l *grantLoad) isFor(now time.Time) bool { return l.now.Month() == now.Month() }

// isSecond reports whether an earlier load of the tenant is still under way: a third
// does not begin beside them.
func (l *grantLoad) isSecond() bool {
	if l.before == nil {
		return false
	}
	select {
	case <-l.before.done:
		l.before = nil
		return false
	default:
		return true
	}
}

// never is later than every position.
const never = 1<<63 - 1

// of returns a tenant's grants, confirmed.
func (c *Cache) of(ctx context.Context, tenant uuid.UUID, now time.Time) (*granted, error) {
	if g, err := c.peek(ctx, tenant, now); g != nil || err != nil {
		return g, err
	}
	return c.load(ctx, tenant, now, time.Now().Add(-shareWithin))
}

// peek returns a tenant's cache entry, nil if missing.
func (c *Cache) peek(ctx context.Context, tenant uuid.UUID, now time.Time) (*granted, error) {
	if err := c.confirmed(ctx); err != nil {
		return nil, err
	}
	p := &c.partitions[events.PartitionOf(tenant)]
	p.mu.RLock()
	g := p.kept[tenant]
	p.mu.RUnlock()
	if g == nil || !g.holds(now) || !c.newEnough(g) {
		return nil, nil
	}
	if !g.asked.Load() {
		g.asked.Store(true)
	}
	return g, nil
}

// newEnough allows an outdated entry for a moment longer, while it is reloaded.
func (c *Cache) newEnough(g *granted) bool {
	at := g.overtaken.Load()
	return at == 0 || time.Since(c.began) < time.Duration(at)+overtakenFor
}

// load reads a tenant's grants in a snapshot that begins after since. Concurrent callers
// wait for the same load, so it outlives its first caller. Callers that need a later
// snapshot share a second load, begun at once; those that need a still later one share the
// load after it: at most two run for a tenant.
func (c *Cache) load(ctx context.Context, tenant uuid.UUID, now, since time.Time) (*granted, error) {
	p := &c.partitions[events.PartitionOf(tenant)]
	p.mu.Lock()
	l := p.loads[tenant]
	switch {
	case l == nil || !l.isFor(now) || l.next != nil && !l.next.isFor(now):
		l = newGrantLoad(tenant, now)
		c.start(ctx, p, l)
	case l.began.Before(since) && !l.isSecond():
		before := l
		l = newGrantLoad(tenant, now)
		l.before = before
		c.start(ctx, p, l)
	case l.began.Before(since):
		if l.next == nil {
			l.next = newGrantLoad(tenant, now)
		}
		l = l.next
	}
	p.mu.Unlock()
	select {
	case <-l.done:
		return l.brought, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start begins a load; the caller holds the partition's lock.
func (c *Cache) start(ctx context.Context, p *grantPartition, l *grantLoad) {
	l.began = time.Now()
	p.loads[l.tenant] = l
	p.running[l] = struct{}{}
	go c.run(context.WithoutCancel(ctx), p, l)
}

// run loads under the tenant's role: row level security has the last word on which rows
// can be cached for the tenant.
func (c *Cache) run(ctx context.Context, p *grantPartition, l *grantLoad) {
	soon, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	defer close(l.done)
	l.brought, l.err = c.reads.readGranted(soon, query.Viewer{TenantID: l.tenant}, l.tenant, l.now)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, l)
	if p.loads[l.tenant] == l {
		delete(p.loads, l.tenant)
	}
	if l.err == nil && l.brought.stands.Folded >= l.atLeast {
		p.store(l.tenant, l.brought)
	}
	if l.next != nil {
		l.next.before = l.before
		c.start(ctx, p, l.next)
	}
}

// store caches a result that is newer than the entry. If the cache is full, it evicts
// other entries: the choice makes no difference to answers.
func (p *grantPartition) store(tenant uuid.UUID, g *granted) {
	if old := p.kept[tenant]; old != nil && old.stands.Folded > g.stands.Folded {
		return
	}
	p.drop(tenant)
	for other := range p.kept {
		if p.size+g.size() <= maxGrantsKept {
			break
		}
		p.drop(other)
	}
	p.kept[tenant] = g
	p.size += g.size()
}

func (g *granted) size() int { return 1 + len(g.grants) }

func (p *grantPartition) drop(tenant uuid.UUID) {
	if g := p.kept[tenant]; g != nil {
		delete(p.kept, tenant)
		p.size -= g.size()
	}
}

// changed records that tenants changed up to a position. Older entries are marked as
// outdated if they were used, and otherwise evicted.
func (p *grantPartition) changed(tenants []uuid.UUID, folded, at int64) (overtaken []*granted) {
	for _, tenant := range tenants {
		delete(p.loads, tenant)
		switch g := p.kept[tenant]; {
		case g == nil || g.stands.Folded >= folded:
		case g.asked.Load():
			g.overtaken.CompareAndSwap(0, at)
			overtaken = append(overtaken, g)
		default:
			p.drop(tenant)
		}
	}
	for l := range p.running {
		for _, tenant := range tenants {
			if l.tenant == tenant {
				l.atLeast = max(l.atLeast, folded)
			}
		}
	}
	return overtaken
}

// forgetOvertaken evicts outdated entries whose reload is overdue.
func (c *Cache) forgetOvertaken() {
	for i := range c.partitions {
		p := &c.partitions[i]
		p.mu.Lock()
		for tenant, g := range p.kept {
			if g.overtaken.Load() != 0 {
				p.drop(tenant)
			}
		}
		p.mu.Unlock()
	}
}

// forget evicts all entries older than a position: never evicts all.
func (p *grantPartition) forget(folded int64) {
	for tenant, g := range p.kept {
		if g.stands.Folded < folded {
			p.drop(tenant)
		}
	}
	clear(p.loads)
	for l := range p.running {
		l.atLeast = max(l.atLeast, folded)
	}
}

// cachedGrants returns a tenant's grants through the cache.
func (r *Reads) cachedGrants(ctx context.Context, v query.Viewer, tenant uuid.UUID, w query.Wait, now time.Time) (*granted, events.Position,
	error) {
	if w.MinPosition == nil {
		g, err := r.Grants.of(ctx, tenant, now)
		if err != nil {
			return nil, events.Position{}, err
		}
		return g, g.asOf, nil
	}
	g, err := r.Grants.peek(ctx, tenant, now)
	if err != nil {
		return nil, events.Position{}, err
	}
	if g != nil && g.asOf.Partition == w.MinPosition.Partition && g.asOf.Number >= w.MinPosition.Number {
		return g, g.asOf, nil
	}
	if err := r.AwaitPassed(ctx, v, query.EntitlementsSource(), tenant, w); err != nil {
		return nil, events.Position{}, err
	}
	// Grants read before this call began may be older than the position.
	if g, err = r.Grants.load(ctx, tenant, now, time.Now()); err != nil {
		return nil, events.Position{}, err
	}
	return g, g.stands.AsOf(tenant, w), nil
}

// errUnconfirmed is reported as an outage: the database has not answered.
var errUnconfirmed = errors.Join(errors.New("the cached entitlements have not been confirmed"), context.DeadlineExceeded)

// Kept counts the cached tenants.
func (c *Cache) Kept() (tenants int) {
	for i := range c.partitions {
		p := &c.partitions[i]
		p.mu.RLock()
		tenants += len(p.kept)
		p.mu.RUnlock()
	}
	return tenants
}
