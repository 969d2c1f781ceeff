package store

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

const (
	// confirmWithin is how old a cached answer may be: a change by another instance
	// takes effect here within a second.
	confirmWithin = 800 * time.Millisecond
	// loadTime is how long a load may take: every request of the key waits for it.
	loadTime = 2 * time.Second
	// maxCached bounds each cache; beyond it the cache starts anew.
	maxCached = 20_000
)

// cache keeps answers for confirmWithin, and longer while the log confirms that their
// source has not changed. Concurrent requests for a key share one load.
type cache[K comparable, V any] struct {
	now    func() time.Time
	load   func(ctx context.Context, key K) (V, error)
	name   func(K) string
	home   func(K, V) (partition int16, ok bool) // whose catalogue events record each change
	seen   CatalogueSeen
	mu     sync.RWMutex
	kept   map[K]kept[V]
	flight singleflight.Group
	era    uint64 // grows with each call of forget: answers loaded before it are not kept
}

// CatalogueSeen returns, for each partition, the last catalogue event up to which all
// are known; nil if that was not confirmed within a time. It must not block.
type CatalogueSeen func(within time.Duration) *[events.Partitions]int64

type kept[V any] struct {
	value     V
	at        time.Time
	partition int16
	catalogue int64 // the last event of the catalogue there before it was read; -1: not known
}

func (c *cache[K, V]) get(ctx context.Context, key K) (V, error) {
	c.mu.RLock()
	k, ok := c.kept[key]
	c.mu.RUnlock()
	if ok && (c.now().Sub(k.at) < confirmWithin || c.unchanged(&k)) {
		return k.value, nil
	}
	return c.fresh(ctx, key)
}

// unchanged reports whether no catalogue event was recorded in a partition since an
// answer was read.
func (c *cache[K, V]) unchanged(k *kept[V]) bool {
	if k.catalogue < 0 {
		return false
	}
	seen := c.seen(confirmWithin)
	return seen != nil && seen[k.partition] == k.catalogue
}

// note stores with an answer the last catalogue event that was seen before the read.
func (c *cache[K, V]) note(key K, k kept[V], seen *[events.Partitions]int64) kept[V] {
	k.catalogue = -1
	if partition, ok := c.home(key, k.value); ok && seen != nil {
		k.partition, k.catalogue = partition, seen[partition]
	}
	return k
}

// fresh reads the tables. It joins a load in progress, unless that began so long ago
// that its answer would be too old for this caller.
func (c *cache[K, V]) fresh(ctx context.Context, key K) (V, error) {
	oldest := c.now().Add(-confirmWithin)
	for {
		k, err := c.join(ctx, key)
		if err != nil || !k.at.Before(oldest) {
			return k.value, err
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= maxCached {
		clear(c.kept)
	}
	if c.era == era {
		c.kept[key] = k
	}
	return k, nil
}

// forget drops all answers: a change that was committed here must take effect at once.
func (c *cache[K, V]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.era++
	clear(c.kept)
}

// Histories caches the subscription histories that verdicts are derived from. It implements
// commands.Histories.
type Histories struct {
	cache[uuid.UUID, domain.History]
}

func newHistories(pool postgres.Pool, now func() time.Time, seen CatalogueSeen, loads seats) *Histories {
	return &Histories{cache[uuid.UUID, domain.History]{
		now: now, kept: map[uuid.UUID]kept[domain.History]{}, name: uuid.UUID.String, seen: seen,
		home: func(tenant uuid.UUID, _ domain.History) (int16, bool) { return events.PartitionOf(tenant), true },
		load: func(ctx context.Context, tenant uuid.UUID) (domain.History, error) {
			leave, err := loads.acquire(ctx)
			if err != nil {
				return nil, err
			}
			defer leave()
			return loadHistory(ctx, pool, tenant)
		},
	}}
}

func loadHistory(ctx context.Context, q postgres.Queryer, tenant uuid.UUID) (domain.History, error) {
	rows, err := q.Query(ctx, `SELECT from_position, effective_from, snapshot FROM subscription_history WHERE tenant_id = $1 ORDER BY from_position`, tenant)
	if err != nil {
		return nil, fmt.Errorf("reading a tenant's subscriptions: %w", err)
	}
	defer rows.Close()
	var h domain.History
	for rows.Next() {
		var e domain.HistoryEntry
		var snapshot []byte
		if err := rows.Scan(&e.FromPosition, &e.EffectiveFrom, &snapshot); err != nil {
			return nil, fmt.Errorf("reading a subscription: %w", err)
		}
		if snapshot != nil {
			if err := json.Unmarshal(snapshot, &e.Subscription); err != nil {
				return nil, fmt.Errorf("decoding a subscription: %w", err)
			}
		}
		h = append(h, e)
	}
	return h, rows.Err()
}

// Cached implements commands.Histories.
func (h *Histories) Cached(ctx context.Context, tenant uuid.UUID) (domain.History, error) {
	v, err := h.get(ctx, tenant)
	return v, unavailable(err)
}

// Fresh implements commands.Histories.
func (h *Histories) Fresh(ctx context.Context, tenant uuid.UUID) (domain.History, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	v, err := h.load(ctx, tenant)
	return v, unavailable(err)
}
