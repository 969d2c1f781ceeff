package postgres

import (
	"context"
	"sync"
	"testing"
	"time"
)

// What a load answers was true when it began: who joins it later must not take it
// for younger, or a key that was revoked elsewhere meanwhile is taken for as much
// longer as the load takes.
func TestCachedAnswerIsAsOldAsItsLoad(t *testing.T) {
	var mu sync.Mutex
	now, loads := time.Unix(1000, 0), 0
	begun, release := make(chan struct{}, 9), make(chan struct{})
	c := &cache[string, int]{
		now:  func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
		kept: map[string]kept[int]{}, name: func(k string) string { return k },
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
	time.Sleep(50 * time.Millisecond) // it joins the load under way; too late, it has one of its own
	close(release)
	wait.Wait()
}
