package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// The answer of a load was true when the load began. A caller that joins later must not
// treat it as newer: a key that another instance revoked meanwhile would be accepted
// longer, by the duration of the load.
func TestCachedAnswerIsAsOldAsItsLoad(t *testing.T) {
	var mu sync.Mutex
	now, loads := time.Unix(1000, 0), 0
	begun, release := make(chan struct{}, 9), make(chan struct{})
	c := &cache[string, int]{
		now:  func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
		kept: map[string]kept[int]{}, name: func(k string) string { return k },
		seen: func(time.Duration) *[events.Partitions]int64 { return nil },
		home: func(string, int) (int16, bool) { return 0, true },
		load: func(context.Context, string) (int, error) {
			mu.Lock()
			loads++
			n := loads
			mu.Unlock()
			begun <- struct{}{}
			<-release
			return n, nil
		},
	}
	ask := func() int {
		v, err := c.get(t.Context(), "key")
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

// A cached answer is used for longer only while the log confirms that its partition has
// not changed since before the read; without that confirmation it expires.
func TestCachedAnswersAreConfirmedByTheLog(t *testing.T) {
	now, loads, seen := time.Unix(1000, 0), 0, &[events.Partitions]int64{3: 7}
	during := func() {}
	c := &cache[string, int]{
		now: func() time.Time { return now }, kept: map[string]kept[int]{}, name: func(k string) string { return k },
		seen: func(time.Duration) *[events.Partitions]int64 { return seen },
		home: func(key string, _ int) (int16, bool) { return 3, key != "nowhere" },
		load: func(context.Context, string) (int, error) {
			loads++
			during()
			return loads, nil
		},
	}
	for _, step := range []struct {
		what  string
		do    func()
		key   string
		loads int
	}{
		{"first", func() {}, "key", 1},
		{"at once", func() {}, "key", 1},
		{"confirmed", func() { now = now.Add(time.Hour) }, "key", 1},
		{"another partition changed", func() { seen = &[events.Partitions]int64{3: 7, 4: 1} }, "key", 1},
		{"its partition changed", func() { seen = &[events.Partitions]int64{3: 8} }, "key", 2},
		{"not confirmed", func() { now, seen = now.Add(time.Hour), nil }, "key", 3},
		{"confirmed, but not when it was read", func() { now, seen = now.Add(time.Hour), &[events.Partitions]int64{3: 8} }, "key", 4},
		{"confirmed again", func() { now = now.Add(time.Hour) }, "key", 4},
		{"nowhere", func() {}, "nowhere", 5},
		{"nowhere, later", func() { now = now.Add(time.Hour) }, "nowhere", 6},
		{"changed while it was read", func() {
			now, seen = now.Add(time.Hour), &[events.Partitions]int64{3: 9}
			during = func() { seen = &[events.Partitions]int64{3: 10} }
		}, "key", 7},
		{"and so is read again", func() { now, during = now.Add(time.Hour), func() {} }, "key", 8},
		{"forgotten", c.forget, "key", 9},
		{"forgotten again while it is read", func() { c.forget(); during = c.forget }, "key", 10},
		{"and so is read again", func() { during = func() {} }, "key", 11},
	} {
		step.do()
		if got, err := c.get(t.Context(), step.key); err != nil || got != step.loads && step.what != "nowhere" || loads != step.loads {
			t.Errorf("%s: load %d of %d, want %d: %v", step.what, got, loads, step.loads, err)
		}
	}
}
