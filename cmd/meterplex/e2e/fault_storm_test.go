package e2e

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// P2: group members join, leave and are killed repeatedly, while one is frozen for longer
// than its session and then continues as if it still owned its partitions.
func TestP2_RebalanceStormWithAZombie(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	const consuming = "validator,aggregator,deadletter"
	// The API is a process of its own: the consumers beside it would get its events ahead of the pipe.
	a := w.serve("api,relay,commands,projector")
	w.serve(consuming)
	w.catalogue(a)
	tenants := w.createTenants(a, 3)
	zombie := w.serve(consuming)
	l := w.startLoad(tenants, 1, lightTraffic(), func(int) string { return a.url() })
	l.awaitMore(100)
	within(t, "the member to freeze has partitions", func(ctx context.Context) (bool, string) {
		n := w.members(ctx)
		return n == 3*2+1, fmt.Sprint(n)
	})
	zombie.signal(syscall.SIGSTOP)
	frozen := time.Now()
	var storm sync.WaitGroup
	for n := range 2 {
		i := w.prepare(consuming)
		storm.Go(func() {
			for round := range 4 {
				if err := i.tryStart(); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(300+700*n) * time.Millisecond)
				if (round+n)%2 == 0 {
					i.kill()
				} else {
					i.stop()
				}
			}
		})
	}
	storm.Wait()
	within(t, "the frozen member's session has ended", func(ctx context.Context) (bool, string) {
		n := w.members(ctx)
		return time.Since(frozen) > 10*time.Second && n == len(groups()), fmt.Sprint(n)
	})
	l.awaitMore(100)
	zombie.signal(syscall.SIGCONT)
	w.awaitMembersInTotal(3*2 + 1)
	l.awaitMore(100)
	l.stop()
	w.settle(a, tenants...)
	w.checkNoneWithheld()
	w.finish()
}

// awaitMembersInTotal waits until the groups have n members in total.
func (w *deployment) awaitMembersInTotal(all int) {
	w.t.Helper()
	within(w.t, "the groups have all their members", func(ctx context.Context) (bool, string) {
		n := w.members(ctx)
		return n == all, fmt.Sprint(n)
	})
}
