package store

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// tenantOf makes the id of a tenant of a partition.
func tenantOf(partition int16) uuid.UUID {
	for {
		if id := uuid.New(); events.PartitionOf(id) == partition {
			return id
		}
	}
}

// The answer of a load was true when the load began. A caller that joins later must not
// treat it as newer: a key that another instance revoked meanwhile would be accepted
// longer, by the duration of the load.
func TestCachedAnswerIsAsOldAsItsLoad(t *testing.T) {
	var mu sync.Mutex
	now, loads := time.Unix(1000, 0), 0
	begun, release := make(chan struct{}, 9), make(chan struct{})
	c := (&cache[string, int]{
		now:   func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
		name:  func(k string) string { return k },
		seen:  func(time.Duration) *projections.CatalogueMarks { return nil },
		owner: func(string, int) owner { return owner{known: true} },
		load: func(context.Context, string) (int, error) {
			mu.Lock()
			loads++
			n := loads
			mu.Unlock()
			begun <- struct{}{}
			<-release
			return n, nil
		},
	}).empty()
	ask := func() int {
		v, _, err := c.get(t.Context(), "key")
		if err != nil {
			t.Error(err)
		}
		return v
	}
	var wait sync.WaitGroup
	wait.Go(func() { ask() })
	<-begun
	mu.Lock()
	now = now.Add(2 * confirmWithin)
	mu.Unlock()
	joining := make(chan struct{})
	wait.Go(func() {
		close(joining)
		if got := ask(); got != 2 {
			t.Errorf("answered with load %d, which began %v before the question", got, 2*confirmWithin)
		}
	})
	<-joining
	time.Sleep(50 * time.Millisecond) // it joins the load in progress; if it is late, it starts its own
	close(release)
	wait.Wait()
}

// marksOf returns the first marks that are seen.
func marksOf(positions map[int16]int64) *projections.CatalogueMarks {
	var steps []projections.CatalogueStep
	for p, at := range positions {
		steps = append(steps, projections.CatalogueStep{Partition: p, Mark: at})
	}
	return (*projections.CatalogueMarks)(nil).With(steps)
}

// changedMarks returns the marks after a change of tenants.
func changedMarks(m *projections.CatalogueMarks, partition int16, at int64, tenants ...uuid.UUID) *projections.CatalogueMarks {
	return m.With([]projections.CatalogueStep{{Partition: partition, Mark: at, Changed: tenants}})
}

// A cached answer is used for longer only while the log confirms that its partition has
// not changed since before the read; without that confirmation it expires.
func TestCachedAnswersAreConfirmedByTheLog(t *testing.T) {
	now, loads, seen := time.Unix(1000, 0), 0, marksOf(map[int16]int64{3: 7})
	during, tenant := func() {}, tenantOf(3)
	c := (&cache[string, int]{
		now: func() time.Time { return now }, name: func(k string) string { return k },
		seen: func(time.Duration) *projections.CatalogueMarks { return seen },
		owner: func(key string, _ int) owner {
			if key == "nowhere" {
				return owner{}
			}
			return owner{tenant, true}
		},
		load: func(context.Context, string) (int, error) {
			loads++
			during()
			return loads, nil
		},
	}).empty()
	forget := func() { c.forget(tenant) }
	for _, step := range []struct {
		what  string
		do    func()
		key   string
		loads int
	}{
		{"first", func() {}, "key", 1},
		{"at once", func() {}, "key", 1},
		{"confirmed", func() { now = now.Add(time.Hour) }, "key", 1},
		{"another partition changed", func() { seen = marksOf(map[int16]int64{3: 7, 4: 1}) }, "key", 1},
		{"its partition changed", func() { seen = marksOf(map[int16]int64{3: 8}) }, "key", 2},
		{"another tenant of its partition changed", func() {
			now, seen = now.Add(time.Hour), changedMarks(seen, 3, 9, uuid.Max)
		}, "key", 2},
		{"its tenant changed", func() { now, seen = now.Add(time.Hour), changedMarks(seen, 3, 10, uuid.Max, tenant) }, "key", 3},
		{"its tenant is the one that changed before it was read", func() {
			now, seen = now.Add(time.Hour), changedMarks(seen, 3, 11, uuid.Max)
		}, "key", 3},
		{"not confirmed", func() { now, seen = now.Add(time.Hour), nil }, "key", 4},
		{"confirmed, but not when it was read", func() { now, seen = now.Add(time.Hour), marksOf(map[int16]int64{3: 8}) }, "key", 5},
		{"confirmed again", func() { now = now.Add(time.Hour) }, "key", 5},
		{"nowhere", func() {}, "nowhere", 6},
		{"nowhere, later", func() { now = now.Add(time.Hour) }, "nowhere", 7},
		{"changed while it was read", func() {
			now, seen = now.Add(time.Hour), marksOf(map[int16]int64{3: 9})
			during = func() { seen = marksOf(map[int16]int64{3: 10}) }
		}, "key", 8},
		{"and so is read again", func() { now, during = now.Add(time.Hour), func() {} }, "key", 9},
		{"forgotten", forget, "key", 10},
		{"forgotten again while it is read", func() { forget(); during = forget }, "key", 11},
		{"and so is read again", func() { during = func() {} }, "key", 12},
		{"another tenant is forgotten", func() { c.forget(uuid.Max) }, "key", 12},
		{"another tenant is forgotten while it is read", func() { forget(); during = func() { c.forget(uuid.Max) } }, "key", 13},
		{"and it is kept", func() { during = func() {} }, "key", 13},
	} {
		step.do()
		if got, _, err := c.get(t.Context(), step.key); err != nil || got != step.loads && step.what != "nowhere" || loads != step.loads {
			t.Errorf("%s: load %d of %d, want %d: %v", step.what, got, loads, step.loads, err)
		}
	}
}

// While the database is away a key that was accepted before is an error, not an answer: it may have been revoked
// meanwhile by another instance.
func TestP9_AnExpiredAnswerIsNotUsedWhileTheDatabaseIsAway(t *testing.T) {
	now, away := time.Unix(1000, 0), error(nil)
	c := (&cache[string, string]{
		now: func() time.Time { return now }, name: func(k string) string { return k },
		seen:  func(time.Duration) *projections.CatalogueMarks { return nil },
		owner: func(string, string) owner { return owner{uuid.Max, true} },
		load:  func(context.Context, string) (string, error) { return "accepted", away },
	}).empty()
	if v, _, err := c.get(t.Context(), "key"); v != "accepted" || err != nil {
		t.Fatalf("the key is %q, %v at first", v, err)
	}
	away = errors.New("no database")
	for range 8 { // some three seconds
		now = now.Add(confirmWithin / 2)
		old := now.Sub(time.Unix(1000, 0))
		v, _, err := c.get(t.Context(), "key")
		if cached := old < confirmWithin; cached != (err == nil) || cached != (v == "accepted") {
			t.Errorf("%v after the load the key is %q, %v", old, v, err)
		}
	}
}

// A caller that arrives after a change does not wait for a load from before it, and gets
// the new state, also if its tenant is not yet known: a load of a key finds the tenant.
func TestNoCallerAfterAChangeJoinsALoadFromBefore(t *testing.T) {
	tenant := uuid.New()
	begun, release := make(chan int, 9), make(chan struct{})
	var mu sync.Mutex
	loads := 0
	c := (&cache[string, int]{
		now: time.Now, name: func(k string) string { return k },
		seen:  func(time.Duration) *projections.CatalogueMarks { return nil },
		owner: func(string, int) owner { return owner{tenant, true} },
		load: func(context.Context, string) (int, error) {
			mu.Lock()
			loads++
			n := loads
			mu.Unlock()
			begun <- n
			if n == 1 {
				<-release
			}
			return n, nil
		},
	}).empty()
	var wait sync.WaitGroup
	wait.Go(func() {
		if v, _, err := c.get(t.Context(), "key"); err != nil || v != 1 {
			t.Errorf("the first caller got load %d: %v", v, err)
		}
	})
	<-begun
	c.forget(tenant)
	wait.Go(func() {
		for range 2 { // the second time from memory
			if v, _, err := c.get(t.Context(), "key"); err != nil || v != 2 {
				t.Errorf("after the change, load %d answered: %v", v, err)
			}
		}
	})
	select {
	case <-begun:
	case <-time.After(5 * time.Minute):
		t.Error("a caller after the change waits for the load from before it")
	}
	close(release)
	wait.Wait()
	if v, _, err := c.get(t.Context(), "key"); err != nil || v != 2 {
		t.Errorf("after the load from before came back, load %d answered: %v", v, err)
	}
}

// guessed is a cache whose keys from guess on are unknown.
func guessed(guess int, loads *int) *cache[int, int] {
	return (&cache[int, int]{
		now: func() time.Time { return time.Unix(1000, 0) }, name: strconv.Itoa,
		seen:  func(time.Duration) *projections.CatalogueMarks { return nil },
		owner: func(key, _ int) owner { return owner{known: key < guess} },
		load:  func(_ context.Context, key int) (int, error) { *loads++; return key, nil },
	}).empty()
}

// TestP9_GuessedKeysEvictNoKey: a client that tries many keys evicts no answer about a key that exists, also of a full cache.
func TestP9_GuessedKeysEvictNoKey(t *testing.T) {
	loads := 0
	c := guessed(maxCached, &loads)
	for key := range 3 * maxCached {
		if v, _, err := c.get(t.Context(), key); err != nil || v != key {
			t.Fatal(v, err)
		}
	}
	if loads = 0; len(c.kept)+len(c.unknown) > maxCached+1000 {
		t.Errorf("%d answers are cached", len(c.kept)+len(c.unknown))
	}
	for key := range maxCached {
		if _, _, err := c.get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if loads > 0 {
		t.Errorf("guesses evicted %d of %d keys", loads, maxCached)
	}
	last := 3*maxCached - 1
	if v, _, err := c.get(t.Context(), last); err != nil || v != last || loads > 0 {
		t.Errorf("the last guess is loaded again: %d, %v", v, err)
	}
}
