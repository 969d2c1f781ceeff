package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

const (
	// confirmWithin is how old a cached answer may be: a change by another instance
	// takes effect here within a second.
	confirmWithin = 800 * time.Millisecond
	// loadTime is how long a load may take: every request of the key waits for it.
	loadTime = 2 * time.Second
	// maxCached bounds each cache; beyond it each new answer evicts another one.
	maxCached = 20_000
	// maxUnknown bounds the answers about unknown keys of each cache, which evict each other only: a client that tries many
	// keys evicts no answer about a key that exists.
	maxUnknown = 1_000
	// maxForgotten bounds the owners whose last change is remembered for the loads in
	// progress. Loads last loadTime at most; in that time few owners change.
	maxForgotten = 1_000
)

// cache keeps answers for confirmWithin, and longer while the log confirms that their
// source has not changed. Concurrent requests for a key share one load.
type cache[K comparable, V any] struct {
	now   func() time.Time
	load  func(ctx context.Context, key K) (V, error)
	name  func(K) string
	owner func(K, V) owner
	seen  CatalogueSeen

	mu        sync.RWMutex
	kept      map[K]kept[V]
	unknown   map[K]kept[V]            // the answers without an owner
	keysOf    map[owner]map[K]struct{} // of kept
	flight    singleflight.Group
	era       uint64           // grows with each call of forget: later callers join no load from before it
	forgotten map[owner]uint64 // the era that began with the owner's last change
	complete  uint64           // the first era for whose loads forgotten names every owner
}

// owner is the tenant whose catalogue events record each change of an answer: Platform
// for operators' keys. The zero value owns the answers about unknown keys.
type owner struct {
	tenant uuid.UUID
	known  bool
}

// CatalogueSeen returns how far the catalogue is known; nil if that was not confirmed within a time. It must not block.
type CatalogueSeen func(within time.Duration) *projections.CatalogueMarks

type kept[V any] struct {
	value     V
	at        time.Time
	owner     owner
	catalogue int64                // the mark of the owner's partition before it was read; -1: not known
	seen      commands.CatalogueAt // the same, as the head of the partition names it
}

// empty makes the maps of a new cache.
func (c *cache[K, V]) empty() *cache[K, V] {
	c.kept, c.unknown = map[K]kept[V]{}, map[K]kept[V]{}
	c.keysOf, c.forgotten = map[owner]map[K]struct{}{}, map[owner]uint64{}
	return c
}

// Get returns the answer about a key, and how far the catalogue of its owner's partition was known to have come while it was true.
func (c *cache[K, V]) get(ctx context.Context, key K) (V, commands.CatalogueAt, error) {
	c.mu.RLock()
	k, ok := c.cached(key)
	c.mu.RUnlock()
	switch {
	case !ok:
	case c.unchanged(&k):
		return k.value, k.seen, nil
	case c.now().Sub(k.at) < confirmWithin:
		return k.value, k.seen, nil
	}
	return c.fresh(ctx, key)
}

// cached returns the answer about a key. The caller holds the lock.
func (c *cache[K, V]) cached(key K) (kept[V], bool) {
	k, ok := c.kept[key]
	if !ok {
		k, ok = c.unknown[key]
	}
	return k, ok
}

// unchanged reports whether no catalogue event of the owner was recorded since an answer was read. Then the answer is true at the present
// catalogue, too.
func (c *cache[K, V]) unchanged(k *kept[V]) bool {
	if k.catalogue < 0 {
		return false
	}
	seen := c.seen(confirmWithin)
	if seen == nil || !seen.Unchanged(k.owner.tenant, k.catalogue) {
		return false
	}
	k.seen = catalogueAt(seen, k.owner.tenant)
	return true
}

func catalogueAt(seen *projections.CatalogueMarks, tenant uuid.UUID) commands.CatalogueAt {
	epoch, position := seen.At(events.PartitionOf(tenant))
	return commands.CatalogueAt{Epoch: epoch, Position: position}
}

// note stores with an answer its owner, and how far the catalogue was seen before the read.
func (c *cache[K, V]) note(key K, k kept[V], seen *projections.CatalogueMarks) kept[V] {
	k.owner, k.catalogue = c.owner(key, k.value), -1
	if k.owner.known && seen != nil {
		k.catalogue, k.seen = seen.Mark(events.PartitionOf(k.owner.tenant)), catalogueAt(seen, k.owner.tenant)
	}
	return k
}

// fresh reads the tables. It joins a load in progress, unless that began so long ago
// that its answer would be too old for this caller.
func (c *cache[K, V]) fresh(ctx context.Context, key K) (V, commands.CatalogueAt, error) {
	oldest := c.now().Add(-confirmWithin)
	for {
		k, err := c.join(ctx, key)
		if err != nil || !k.at.Before(oldest) {
			return k.value, k.seen, err
		}
	}
}

// join starts or joins the load of a key. The load outlives the first caller, since
// others wait for it. The age of its answer counts from its beginning.
func (c *cache[K, V]) join(ctx context.Context, key K) (kept[V], error) {
	c.mu.RLock()
	era := c.era
	c.mu.RUnlock()
	loaded, err, _ := c.flight.Do(fmt.Sprint(era, "/", c.name(key)), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTime)
		defer cancel()
		seen, at := c.seen(confirmWithin), c.now()
		v, err := c.load(ctx, key)
		return c.note(key, kept[V]{value: v, at: at}, seen), err
	})
	if err != nil {
		return kept[V]{}, err
	}
	k := loaded.(kept[V])
	c.store(key, k, era)
	return k, nil
}

// store caches an answer whose load began in an era, unless its owner has changed since,
// or a later load has stored its answer.
func (c *cache[K, V]) store(key K, k kept[V], era uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, _ := c.cached(key); era < c.complete || c.forgotten[k.owner] > era || last.at.After(k.at) {
		return
	}
	c.evict(key)
	in, most := c.kept, maxCached
	if !k.owner.known {
		in, most = c.unknown, maxUnknown
	}
	if len(in) >= most {
		for another := range in { // a random one
			c.evict(another)
			break
		}
	}
	if in[key] = k; !k.owner.known {
		return
	}
	if c.keysOf[k.owner] == nil {
		c.keysOf[k.owner] = map[K]struct{}{}
	}
	c.keysOf[k.owner][key] = struct{}{}
}

// evict removes an answer, if it is cached. The caller holds the lock.
func (c *cache[K, V]) evict(key K) {
	delete(c.unknown, key)
	k, ok := c.kept[key]
	if !ok {
		return
	}
	delete(c.kept, key)
	keys := c.keysOf[k.owner]
	if delete(keys, key); len(keys) == 0 {
		delete(c.keysOf, k.owner)
	}
}

// forget removes the answers of tenants, and those about unknown keys: a change that was
// committed here must take effect at once. A load in progress may have read the old state
// of these tenants: its answer is not cached, and later callers do not wait for it.
func (c *cache[K, V]) forget(tenants ...uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.era++
	if len(c.forgotten)+len(tenants) >= maxForgotten {
		clear(c.forgotten)
		c.complete = c.era
	}
	clear(c.unknown)
	c.forgotten[owner{}] = c.era
	for _, tenant := range tenants {
		c.forgetOwner(owner{tenant, true})
	}
}

func (c *cache[K, V]) forgetOwner(o owner) {
	for key := range c.keysOf[o] {
		delete(c.kept, key)
	}
	delete(c.keysOf, o)
	c.forgotten[o] = c.era
}
