package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// Requests are under way when the process is killed. A request without an answer is
// sent again and counts once.
func TestP1_KillAfterCommitBeforeAnswer(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	m := busyTraffic()
	m.pause = 0
	l := w.startLoad(tenants, 4, m, func(int) string { return i.url() })
	for range tier.Draws(t, 1, 2) {
		l.awaitMore(500)
		l.killDuringRequest(i)
		i.start()
	}
	l.awaitMore(100)
	l.stop()
	t.Logf("%d requests had no answer", l.lost())
	if verdicts := w.settle(i, tenants...); len(verdicts) > 0 {
		t.Errorf("%d events were still without a verdict", len(verdicts))
	}
	w.finish()
}

// The proxy drops the answers, so all requests are durable when the process is killed:
// each retry must be a duplicate.
func TestP1_AnswerLostOnTheWire(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	p := newProxy(t, func() string { return hostOf(i.url()) })
	p.set(dropsAnswers)
	p.start()
	ctx, cancel := context.WithCancel(t.Context())
	const requests, each = 8, 25
	ended := make(chan bool, requests)
	for n := range requests {
		go func() {
			_, ok := (&client{w: w, tenant: x, to: p.url}).sendOnce(ctx, events(fmt.Sprint("lost", n), each, "api_calls"))
			ended <- ok
		}()
	}
	within(t, "every answer was sent", func(context.Context) (bool, string) {
		n := p.lost()
		return n == requests, fmt.Sprint(n)
	})
	i.kill()
	cancel()
	p.close()
	for range requests {
		if <-ended {
			t.Error("an answer arrived")
		}
	}
	i.start()
	verdicts := w.settle(i, x)
	if len(verdicts) != requests*each {
		t.Fatalf("%d verdicts, want %d", len(verdicts), requests*each)
	}
	for _, v := range verdicts {
		if v.Status != "duplicate" {
			t.Errorf("%s was durable, its retry is %s", v.EventID, v.Status)
		}
	}
	w.finish()
}
