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

// GrantCache keeps what tenants are granted and have used, so that a check costs no
// statement. What it keeps of a tenant is what one snapshot showed under that
// tenant's own role, and says nothing else until the projection has folded another
// event of the tenant: the log itself tells which tenants those are (grant_feed.go).
//
// Three rules keep it right, whatever comes between. A load is told of every change
// that the feed sees while it runs, and what it brings is kept only if it holds them.
// Nothing is kept that is older than what is there. And nothing is answered that the
// feed has not confirmed within confirmedFor.
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
	checked atomicTime // the last check; keys and histories ask, too
}

// Bounds of what is kept, for each partition: a tenant takes one and one more for
// each grant, some 200 bytes each. 10,000 tenants with 10 grants take a third of it.
const maxGrantsKept = 10_000

const (
	// overtakenFor is how long what the feed saw overtaken is told, from the look on.
	// With the time between two looks it is what an answer may be behind the projection.
	overtakenFor = maxUnconfirmed - feedEvery
	// maxReloads bounds how many the feed reads again after a look; others are read
	// when they are asked for. The service's other work needs connections, too.
	maxReloads = 8
	// loadTime bounds a load, shareWithin how old one may be to wait for it.
	loadTime    = 5 * time.Second
	shareWithin = maxUnconfirmed
)

// NewGrantCache needs Run to be fast, not to be right: without it each answer that
// is not confirmed waits for the feed. Its looks, one at a time, go to a pool of their
// own: reads that take all connections of the other must not make answers that are
// kept unconfirmed, nor loads keep writers waiting.
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

// grantPartition is what is kept of a log partition's tenants.
type grantPartition struct {
	mu      sync.RWMutex
	folded  int64 // the feed has told of each change up to here
	kept    map[uuid.UUID]*granted
	size    int
	loads   map[uuid.UUID]*grantLoad // those that may be waited for
	running map[*grantLoad]struct{}
}

// grantLoad is a load under way. What it brings is kept only where it is folded up
// to atLeast.
type grantLoad struct {
	tenant  uuid.UUID
	began   time.Time
	now     time.Time
	atLeast int64
	done    chan struct{}
	before  *grantLoad // was under way when this one began, which is for those for whom it began too early
	next    *grantLoad // begins after this one, for those for whom this one does and another is before it
	brought *granted
	err     error
}

func newGrantLoad(tenant uuid.UUID, now time.Time) *grantLoad {
	return &grantLoad{tenant: tenant, now: now, done: make(chan struct{})}
}

// isFor tells whether what the load brings is of the periods of now.
func (l *grantLoad) isFor(now time.Time) bool { return l.now.Month() == now.Month() }

// isSecond tells whether another load of the tenant, which began before, is still
// under way: a third does not begin beside them.
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

// never is folded by nothing.
const never = 1<<63 - 1

// of gives what is granted to a tenant, confirmed.
func (c *Cache) of(ctx context.Context, tenant uuid.UUID, now time.Time) (*granted, error) {
	if g, err := c.peek(ctx, tenant, now); g != nil || err != nil {
		return g, err
	}
	return c.load(ctx, tenant, now, time.Now().Add(-shareWithin))
}

// peek gives what is kept of a tenant, nil where nothing is.
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

// newEnough lets what is overtaken be told a moment longer, while it is read again.
func (c *Cache) newEnough(g *granted) bool {
	at := g.overtaken.Load()
	return at == 0 || time.Since(c.began) < time.Duration(at)+overtakenFor
}

// load reads what is granted to a tenant in a snapshot that begins after since. Who
// asks meanwhile waits for the same, so a load outlives the one who began it. Those
// for whom it began too early share one that begins at once, and what is too early
// again waits for the one after that: two at most run for a tenant.
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

// run loads under the tenant's role: row level security has the last word on what
// can be kept as the tenant's.
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
		p.keep(l.tenant, l.brought)
	}
	if l.next != nil {
		l.next.before = l.before
		c.start(ctx, p, l.next)
	}
}

// keep puts away what is newer than what is there. Where there is no room, any
// others go: which ones makes no difference to what is answered.
func (p *grantPartition) keep(tenant uuid.UUID, g *granted) {
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

// changed takes in that tenants have changed up to a position. What is kept of them
// and older is overtaken if somebody asked for it, and else forgotten.
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

// forgetOvertaken drops what is told only until it is read again.
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

// forget drops all that is older than a position: never drops all.
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

// cachedGrants is granted with a cache.
func (r *Reads) cachedGrants(ctx context.Context, v query.Viewer, tenant uuid.UUID, w query.Wait, now time.Time) (*granted, events.Position, error) {
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
	// What others read before this one arrived may be older than the position.
	if g, err = r.Grants.load(ctx, tenant, now, time.Now()); err != nil {
		return nil, events.Position{}, err
	}
	return g, g.stands.AsOf(tenant, w), nil
}

// errUnconfirmed is an outage to whoever asks: the database has not answered.
var errUnconfirmed = errors.Join(errors.New("what is kept of entitlements has not been confirmed"), context.DeadlineExceeded)

// Kept counts the tenants of which something is kept.
func (c *Cache) Kept() (tenants int) {
	for i := range c.partitions {
		p := &c.partitions[i]
		p.mu.RLock()
		tenants += len(p.kept)
		p.mu.RUnlock()
	}
	return tenants
}
