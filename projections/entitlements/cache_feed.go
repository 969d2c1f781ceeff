package entitlements

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

const (
	// feedEvery is how often the feed polls while checks arrive.
	feedEvery = 50 * time.Millisecond
	// maxUnconfirmed is how old a poll may be to answer without a new one.
	maxUnconfirmed = 100 * time.Millisecond
	// confirmedFor is how long confirmed entries are used while the database does not answer.
	confirmedFor = time.Second
	// askedWithin is how long the feed continues to poll after the last check.
	askedWithin = time.Second
	// feedTime bounds a poll, feedPatience the wait of an answer that does not need it.
	feedTime     = 500 * time.Millisecond
	feedPatience = 50 * time.Millisecond
	// feedSpan bounds how much of a partition's log is searched for tenants; if more was
	// folded between two polls, the whole partition is evicted.
	feedSpan = 8192
)

// grantFeed follows the projection's progress.
type grantFeed struct {
	mu        sync.Mutex
	look      *grantLook // under way
	server    grantServer
	restarts  int64      // of the server, and other servers in its place
	confirmed atomicTime // start of the last successful poll
	catalogue atomic.Pointer[projections.CatalogueMarks]
	features  struct {
		mu    sync.Mutex
		known map[string]bool // nil: unknown
		load  *featureLoad    // under way, shared by all callers
		seen  int64           // the last polled change of the platform's catalogue
	}
}

// featureLoad is one read of all features.
type featureLoad struct {
	done  chan struct{}
	known map[string]bool
	err   error
}

// grantLook is one poll of the database.
type grantLook struct {
	began time.Time
	done  chan struct{}
	err   error
}

// atomicTime is a time since the cache began; 0 is never.
type atomicTime struct{ atomic.Int64 }

func (t *atomicTime) before(began, oldest time.Time) bool {
	at := t.Load()
	return at == 0 || began.Add(time.Duration(at)).Before(oldest)
}

// Run keeps the feed at its pace while checks arrive, and is idle otherwise.
func (c *Cache) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.asked.wake:
		}
		for !c.asked.last.before(c.began, time.Now().Add(-askedWithin)) {
			pace := feedEvery
			if err := c.confirmSince(ctx, time.Now()); err != nil {
				pace = maxUnconfirmed // callers get an error
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(pace):
			}
		}
	}
}

// Confirm polls the projection's present progress: later answers are at least as new.
// An error means that the progress is unknown.
func (c *Cache) Confirm(ctx context.Context) error {
	if err := c.confirmSince(ctx, time.Now()); err != nil {
		return err
	}
	c.forgetOvertaken()
	return nil
}

// Catalogue returns how far the catalogue had come at the last poll; another database has other marks. It returns nil if that
// poll did not begin within the given time. It never waits.
func (c *Cache) Catalogue(within time.Duration) *projections.CatalogueMarks {
	now := time.Now()
	c.isAsked(now)
	if c.feed.confirmed.before(c.began, now.Add(-within)) {
		return nil
	}
	return c.feed.catalogue.Load()
}

// LastCatalogue returns how far the catalogue had come at the last poll, whenever that was; nil: before the first poll.
func (c *Cache) LastCatalogue() *projections.CatalogueMarks { return c.feed.catalogue.Load() }

// isAsked keeps the feed polling.
func (c *Cache) isAsked(now time.Time) {
	if c.asked.last.before(c.began, now.Add(-askedWithin/4)) {
		c.asked.last.Store(int64(now.Sub(c.began)) + 1)
		select {
		case c.asked.wake <- struct{}{}:
		default:
		}
	}
}

// confirmed returns an answer if it is new enough.
func (c *Cache) confirmed(ctx context.Context) error {
	now := time.Now()
	c.isAsked(now)
	c.checked.Store(int64(now.Sub(c.began)) + 1)
	if !c.feed.confirmed.before(c.began, now.Add(-maxUnconfirmed)) {
		return nil
	}
	still := !c.feed.confirmed.before(c.began, now.Add(-confirmedFor+feedPatience))
	if still {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, feedPatience)
		defer cancel()
	}
	if err := c.confirmSince(ctx, now.Add(-maxUnconfirmed)); err != nil && !still {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	return nil
}

// confirmSince waits for a poll that began at oldest or later. A caller that arrives
// during a poll waits for the same one.
func (c *Cache) confirmSince(ctx context.Context, oldest time.Time) error {
	for c.feed.confirmed.before(c.began, oldest) {
		c.feed.mu.Lock()
		l := c.feed.look
		if l == nil {
			l = &grantLook{began: time.Now(), done: make(chan struct{})}
			c.feed.look = l
			go c.poll(context.WithoutCancel(ctx), l)
		}
		c.feed.mu.Unlock()
		select {
		case <-l.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if l.err != nil {
			return l.err
		}
	}
	return nil
}

// grantStep is the result of a poll of a partition: the projection's position, the tenants
// changed since the previous poll, and the last change of the catalogue there.
type grantStep struct {
	partition int16
	folded    int64
	catalogue int64
	epoch     int32
	moved     []uuid.UUID // the tenants whose catalogue or periods changed since the previous poll; nil: no tenant, or not known
	changed   []uuid.UUID
	complete  bool // changed is complete
}

// grantServer is shared by all partitions of a poll: the flips, and the identity and start
// of the server that answered.
type grantServer struct {
	flip    int
	started time.Time
}

// Changes of periods count as changes of the catalogue: histories have both. The tenants that changed behind the position in $5 are found
// along the positions before on the topic, if they are few.
// $1 and $2 are the feed's position in each partition, $3 the partitions with entries.
// All generations that have joined have the same position. OFFSET keeps the
// planner from sorting by the keys' index, which is in the order of tenants.
var readGrantFeed = events.SQL(`
SELECT k.partition, c.position, greatest(h.topic_positions[{meterplex.catalogue}], h.topic_positions[{meterplex.billing}]),
c.position <= k.position OR k.kept AND c.position <= k.position + $4,
       CASE WHEN k.kept AND c.position > k.position AND c.position <= k.position + $4 THEN (
         SELECT array_agg(DISTINCT s.tenant_id) FROM (
           SELECT l.tenant_id FROM event_log_rows l
           WHERE l.partition = k.partition AND l.position > k.position AND l.position <= c.position
           ORDER BY l.position OFFSET 0) s) END,
       h.epoch, CASE WHEN k.seen >= 0 AND greatest(h.topic_positions[{meterplex.catalogue}],
       h.topic_positions[{meterplex.billing}]) > k.seen THEN (
         WITH RECURSIVE walk (position, tenant_id, n) AS (
           SELECT l.previous_position, l.tenant_id, 1
           FROM unnest(ARRAY[h.topic_positions[{meterplex.catalogue}], h.topic_positions[{meterplex.billing}]]) AS last (position)
           CROSS JOIN LATERAL (SELECT l.previous_position, l.tenant_id FROM event_log_rows l WHERE l.partition = k.partition
           AND l.position = last.position LIMIT 1) l
           WHERE last.position > k.seen
           UNION ALL
           SELECT l.previous_position, l.tenant_id, w.n + 1 FROM walk w
           CROSS JOIN LATERAL (SELECT l.previous_position, l.tenant_id FROM event_log_rows l WHERE l.partition = k.partition
           AND l.position = w.position LIMIT 1) l
           WHERE w.position > k.seen AND w.n < 256)
         SELECT CASE WHEN count(*) FILTER (WHERE w.position <= k.seen) = coalesce((h.topic_positions[{meterplex.catalogue}] > k.seen)::int,
         0)
           + coalesce((h.topic_positions[{meterplex.billing}] > k.seen)::int, 0) THEN array_agg(DISTINCT w.tenant_id) END FROM walk w) END,
       (SELECT max(greatest(p.flip, p.undone_flip)) FROM projection_pointers p WHERE p.projection = 'entitlement_reads'),
       pg_postmaster_start_time()
FROM unnest($1::smallint[], $2::bigint[], $3::boolean[], $5::bigint[]) AS k (partition, position, kept, seen)
JOIN log_heads h ON h.partition = k.partition
CROSS JOIN LATERAL (SELECT min(position) AS position FROM consumer_checkpoints
  WHERE consumer = 'meterplex-entitlement-reads' AND partition = k.partition AND joined) c`)

// Planning each time takes longer than the poll. The cached plan uses primary keys,
// however small a table was when it was made.
const (
	keepPlans    = `SET LOCAL plan_cache_mode = force_generic_plan`
	alongIndexes = `SET LOCAL enable_seqscan = off`
)

// poll polls once. Polls run one after the other.
func (c *Cache) poll(ctx context.Context, l *grantLook) {
	ctx, cancel := context.WithTimeout(ctx, feedTime)
	defer cancel()
	steps, server, err := c.readChanges(ctx, l.began)
	if err == nil && len(steps) != events.Partitions {
		err = fmt.Errorf("follow entitlements: %w", query.ErrNoLiveGeneration)
	}
	if err == nil {
		c.apply(ctx, steps, server, int64(l.began.Sub(c.began))+1)
		c.feed.confirmed.Store(int64(l.began.Sub(c.began)) + 1)
	}
	c.feed.mu.Lock()
	c.feed.look = nil
	c.feed.mu.Unlock()
	l.err = err
	close(l.done)
}

// readChanges reads the changed tenants only while checks arrive: keys and histories need only
// the catalogue.
func (c *Cache) readChanges(ctx context.Context, now time.Time) (steps []grantStep, server grantServer, err error) {
	var partitions [events.Partitions]int16
	var folded [events.Partitions]int64
	var kept [events.Partitions]bool
	var seen [events.Partitions]int64
	marks := c.feed.catalogue.Load()
	checks := !c.checked.before(c.began, now.Add(-askedWithin))
	for i := range c.partitions {
		p := &c.partitions[i]
		p.mu.RLock()
		partitions[i], folded[i], kept[i] = int16(i), p.folded, checks && len(p.kept)+len(p.running) > 0
		p.mu.RUnlock()
		if seen[i] = -1; marks != nil {
			seen[i] = marks.Position(int16(i))
		}
	}
	nothing := func(pgx.Rows) error { return nil }
	err = c.looks.Snapshot(ctx, query.Viewer{Operator: true}, query.New(keepPlans, nil, nothing), query.New(alongIndexes, nil, nothing),
		query.New(readGrantFeed, []any{partitions[:], folded[:], kept[:], int64(feedSpan), seen[:]}, query.Each(func(rows pgx.Rows) error {
			var s grantStep
			err := rows.Scan(&s.partition, &s.folded, &s.catalogue, &s.complete, &s.changed, &s.epoch, &s.moved, &server.flip,
				&server.started)
			steps = append(steps, s)
			return err
		})))
	return steps, server, err
}

// apply applies the result of a poll. A partition that it does not cover completely may
// have changed in any way. A checkpoint that went back, or another start of the server, may
// mean another history: after a failover that lost its end the same positions may hold
// other events.
func (c *Cache) apply(ctx context.Context, steps []grantStep, server grantServer, at int64) {
	reloads := 0
	restarted := !server.started.Equal(c.feed.server.started)
	if restarted {
		c.feed.restarts++
	}
	flipped := restarted || server.flip != c.feed.server.flip
	c.feed.server = server
	var catalogue []projections.CatalogueStep
	for i := range steps {
		s := &steps[i]
		p := &c.partitions[s.partition]
		p.mu.Lock()
		switch {
		case flipped || s.folded < p.folded:
			p.forget(never)
		case !s.complete:
			p.forget(s.folded)
		default:
			for _, g := range p.changed(s.changed, s.folded, at) {
				if reloads++; reloads <= maxReloads {
					c.start(ctx, p, newGrantLoad(g.tenant, g.from))
				}
			}
		}
		p.folded = s.folded
		p.mu.Unlock()
		catalogue = append(catalogue, projections.CatalogueStep{Partition: s.partition, Epoch: s.epoch,
			Mark: projections.CatalogueMarkOf(c.feed.restarts, s.catalogue), Changed: s.moved})
		if s.partition == events.PartitionOf(events.Platform) {
			c.sawCatalogue(s.catalogue, restarted)
		}
	}
	c.feed.catalogue.Store(c.feed.catalogue.Load().With(catalogue))
}

func (c *Cache) sawCatalogue(position int64, restarted bool) {
	f := &c.feed.features
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen != position || restarted {
		f.known, f.load, f.seen = nil, nil, position
	}
}

const readFeatures = `
SELECT lookup_key FROM features`

// knownFeatures returns the keys of all features, so that a check of an unknown feature
// needs no statement either.
func (c *Cache) knownFeatures(ctx context.Context) (map[string]bool, error) {
	f := &c.feed.features
	f.mu.Lock()
	if known := f.known; known != nil {
		f.mu.Unlock()
		return known, nil
	}
	l := f.load
	if l == nil {
		l = &featureLoad{done: make(chan struct{})}
		f.load = l
		go c.loadFeatures(context.WithoutCancel(ctx), l)
	}
	f.mu.Unlock()
	select {
	case <-l.done:
		return l.known, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// loadFeatures reads the features without a lock, so that a concurrent poll need not wait.
// A result that a poll overtook is not cached, and later callers do not join its load.
func (c *Cache) loadFeatures(ctx context.Context, l *featureLoad) {
	ctx, cancel := context.WithTimeout(ctx, feedTime)
	defer cancel()
	known := make(map[string]bool)
	err := c.looks.Snapshot(ctx, query.Viewer{Operator: true}, query.New(readFeatures, nil, query.Each(func(rows pgx.Rows) error {
		var key string
		err := rows.Scan(&key)
		known[key] = true
		return err
	})))
	if err != nil {
		known, err = nil, fmt.Errorf("read the features: %w", err)
	}
	f := &c.feed.features
	f.mu.Lock()
	if f.load == l {
		f.known, f.load = known, nil
	}
	f.mu.Unlock()
	l.known, l.err = known, err
	close(l.done)
}
