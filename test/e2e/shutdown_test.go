package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// SIGTERM under load ends the process with 0; answered events are stored.
func TestGracefulShutdownUnderLoad(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.underLoad(3, busyTraffic(), func(i *instance, l *load) {
		for range 2 {
			within(t, "the groups are joined", func(ctx context.Context) (bool, string) {
				n := groupMembers(ctx, w)
				return n == len(groups()), fmt.Sprint(n)
			})
			l.awaitMore(300)
			i.stop()
			n := -1
			within(t, "the groups' coordinator answers", func(ctx context.Context) (bool, string) {
				n = groupMembers(ctx, w)
				return n >= 0, ""
			})
			if n != 0 {
				t.Errorf("%d members are left in the groups, want 0: their partitions wait for the session timeout", n)
			}
			i.start()
		}
		l.awaitMore(300)
	})
}

// groupMembers counts the groups' members. It returns -1 during a rebalance or if the
// coordinator does not answer.
func groupMembers(ctx context.Context, w *deployment) (n int) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	var names []string
	for group := range groups() {
		names = append(names, w.prefix+group)
	}
	described, err := kadm.NewClient(c).DescribeGroups(ctx, names...)
	if err != nil {
		return -1
	}
	for _, g := range described {
		n += len(g.Members)
		if g.State != "Stable" && len(g.Members) > 0 {
			return -1
		}
	}
	return n
}

// Requests that wait for a lock when SIGTERM comes are finished and answered.
func TestGracefulShutdownAnswersOpenRequests(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	i := w.serve("")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	w.ingest(i, x, "accepted", events("before", 5, "api_calls")...)
	w.drain()
	url := i.url()
	const requests = 6
	answered := make(chan int, requests)
	held, err := w.sql.Begin(t.Context())
	must.OK(t, err)
	defer held.Rollback(context.WithoutCancel(t.Context()))
	if _, err := held.Exec(t.Context(), `SELECT FROM log_heads ORDER BY partition FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for n := range requests {
		go func() {
			batch := events(fmt.Sprint("held", n), 3, "api_calls")
			x.ledger.sending(batch)
			status, body, err := w.call(t.Context(), x.key, http.MethodPost, url+"/api/v1/usage/events", object{"events": batch})
			if err != nil {
				t.Errorf("a request under way was not answered: %v %s", err, body)
			}
			answered <- status
		}()
	}
	within(t, "every request is under way or answered, and one waits for the lock", func(context.Context) (bool, string) {
		came := len(answered) + int(w.metric(i, `meterplex_http_requests_in_flight{kind="ingest"}`))
		waiting := w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		return came == requests && len(answered) < requests && waiting > 0, fmt.Sprint(came, " requests, ", waiting, " waiting")
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.stop()
	}()
	time.Sleep(300 * time.Millisecond)
	select {
	case <-ended:
		t.Error("the process ended while requests were under way")
	default:
	}
	must.OK(t, held.Commit(t.Context()))
	counts := map[int]int{}
	for range requests {
		counts[<-answered]++
	}
	<-ended
	t.Logf("answers by status: %v", counts)
	if counts[http.StatusAccepted]+counts[http.StatusServiceUnavailable] != requests || counts[http.StatusAccepted] == 0 {
		t.Errorf("answers by status: %v", counts)
	}
	i.start()
	w.settle(i, x)
	w.finish()
}
