package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// identityTerms are the terms of the identity as the API returns them.
type identityTerms struct {
	Partition                                                                     int
	Accepted, Applied, Rejected, Undecided, Unapplied, Parked, Validated, Missing int64
}

func (x identityTerms) hold() bool {
	return x.Missing == 0 && x.Accepted == x.Applied+x.Rejected+x.Undecided+x.Unapplied+x.Parked
}

// In every sample each accepted event is in exactly one place, while clients send and
// subscriptions end between acceptance and verdict.
func TestP3_IdentityHoldsAtEverySample(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	a, b := w.serve(""), w.serve("api")
	w.catalogue(a)
	tenants := w.createTenants(a, 2)
	l := w.startLoad(tenants, 2, busyTraffic(), func(int) string { return a.url() })
	stop, ended := make(chan struct{}), make(chan int, 1)
	go w.cancelAndRenew(b, tenants[0], stop, ended)
	samples, moving, refused := 0, 0, 0
	for start := time.Now(); (samples < 60 || refused == 0) && time.Since(start) < 90*time.Second; samples++ {
		if w.sampleIdentity(a) {
			moving++
		}
		refused = w.countIdentity()
		time.Sleep(30 * time.Millisecond)
	}
	close(stop)
	if renewed := <-ended; renewed == 0 {
		t.Error("no subscription was cancelled")
	}
	l.stop()
	t.Logf("%d samples, %d with events in flight; %d events rejected after they were accepted", samples, moving, refused)
	if moving == 0 || refused == 0 {
		t.Error("no sample had events in flight, or none was rejected")
	}
	w.finish()
}

// cancelAndRenew repeatedly cancels the tenant's subscription and begins another: an
// instance with the old one in its cache still accepts for a moment.
func (w *deployment) cancelAndRenew(at *instance, x *tenant, stop <-chan struct{}, ended chan<- int) {
	n := 0
	defer func() { ended <- n }()
	for {
		select {
		case <-stop:
			return
		case <-time.After(300 * time.Millisecond):
		}
		w.setSubscription(at, x, x.subscription, "CANCELLED")
		time.Sleep(200 * time.Millisecond)
		x.subscription = w.subscribe(at, x)
		n++
	}
}

// sampleIdentity checks the identity by the API and reports whether events were in flight.
func (w *deployment) sampleIdentity(at *instance) bool {
	w.t.Helper()
	var response struct {
		Holds      bool
		InFlight   int64
		Total      identityTerms
		Partitions []identityTerms
	}
	w.ask(w.operator, http.MethodGet, at, "/api/v1/system/identity", nil, &response, http.StatusOK)
	if !response.Holds || !response.Total.hold() || len(response.Partitions) != 32 {
		w.t.Errorf("the identity does not hold: %+v", response)
	}
	for _, p := range response.Partitions {
		if !p.hold() {
			w.t.Errorf("the identity does not hold: %+v", p)
		}
	}
	return response.InFlight > 0
}

// countSQL counts the same from rows, in one snapshot: recorded = with a verdict + beyond
// the validator; yes = applied + beyond the aggregator.
const countSQL = `
SELECT (SELECT count(*) FROM event_log_rows WHERE subject IN (1, 6, 8, 9, 19)),
       (SELECT count(*) FROM event_log_rows WHERE subject IN (2, 3)),
       (SELECT count(*) FROM event_log_rows l JOIN consumer_checkpoints c USING (partition)
         WHERE l.topic = 1 AND c.consumer = 'meterplex-usage-validator' AND c.generation = 1 AND l.position > c.position),
       (SELECT count(*) FROM event_log_rows WHERE subject = 2),
       (SELECT coalesce(sum(applied_count), 0)::bigint FROM usage_aggregates WHERE generation = 1),
       (SELECT count(*) FROM event_log_rows l JOIN consumer_checkpoints c USING (partition)
         WHERE l.topic = 2 AND c.consumer = 'meterplex-usage-aggregator' AND c.generation = 1 AND l.position > c.position),
       (SELECT sum(accepted)::bigint FROM log_heads), (SELECT sum(validated + rejected)::bigint FROM log_heads)`

// countIdentity checks these sums and returns the number of rejections.
func (w *deployment) countIdentity() int {
	w.t.Helper()
	var recorded, decided, undecided, yes, applied, unapplied, accepted, counted int64
	err := w.sql.QueryRow(w.t.Context(), countSQL).Scan(&recorded, &decided, &undecided, &yes, &applied, &unapplied, &accepted, &counted)
	if err != nil {
		w.t.Fatal(err)
	}
	if recorded != decided+undecided || yes != applied+unapplied || accepted != recorded || counted != decided {
		w.t.Errorf("rows: recorded %d (counted %d) = decided %d (counted %d) + undecided %d; yes %d = applied %d + unapplied %d",
			recorded, accepted, decided, counted, undecided, yes, applied, unapplied)
	}
	return int(decided - yes)
}

// A rejection is a dead letter; after its cause is fixed, a retry counts it once.
func TestP3_RejectedThenRetried(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	a, b := w.serve(""), w.serve("api")
	w.catalogue(a)
	x := w.createTenants(a, 1)[0]
	rejected := w.acceptThenReject(a, b, x)
	w.drain()
	w.sampleIdentity(a)
	letter := w.letter(a, x, "FAILED")
	if letter.EventID != rejected.EventID || letter.Stage != "VALIDATION" || letter.Code != "no_active_subscription" {
		t.Errorf("the dead letter is %+v, want one of %s", letter, rejected.EventID)
	}
	retry := "/api/v1/dead-letters/" + letter.ID + "/retry"
	w.ask(w.operator, http.MethodPost, a, retry, object{"reason": "renewed"}, nil, http.StatusAccepted)
	if done := w.letter(a, x, "RESOLVED"); done.ID != letter.ID || done.RetryCount != 1 {
		t.Errorf("after the retry: %+v", done)
	}
	w.ask(w.operator, http.MethodPost, a, retry, object{"reason": "again"}, nil, http.StatusConflict)
	w.drain()
	w.sampleIdentity(a)
	var receipt struct{ Status string }
	w.ask(x.key, http.MethodGet, a, "/api/v1/usage/events/"+rejected.EventID, nil, &receipt, http.StatusOK)
	if receipt.Status != "AGGREGATED" {
		t.Errorf("the receipt says %s", receipt.Status)
	}
	w.ingest(a, x, "duplicate", rejected)
	w.finish()
	if got := w.sums(`SELECT feature, sum(amount)::bigint, sum(event_count)::bigint FROM usage_aggregates WHERE tenant_id = $1 GROUP BY 1`, x.id); got["api_calls"] != x.ledger.sums()["api_calls"] {
		t.Errorf("the aggregates are %v, acknowledged %v", got, x.ledger.sums())
	}
}

// acceptThenReject returns an event that one instance accepts after another has cancelled the
// subscription, and renews the subscription. Caches may be stale for a moment only: after 20
// tries it sends both requests at once, until they are recorded in that order.
func (w *deployment) acceptThenReject(at, other *instance, x *tenant) event {
	w.t.Helper()
	const tries = 20
	for n := range 5 * tries {
		try := x.ledger.acked() // makes ids unique
		w.awaitKeys(other, []*tenant{x})
		w.ingest(at, x, "accepted", events(fmt.Sprint("before", try), 1, "api_calls")...)
		var e event
		var sent sync.WaitGroup
		send := func(ahead time.Duration) { // its time must be after the cancellation, too
			e = shifted(events(fmt.Sprint("after", try, "-", n), 1, "api_calls"), ahead)[0]
			(&client{w: w, tenant: x, to: at.url}).send(w.t.Context(), []event{e})
		}
		if n >= tries {
			sent.Go(func() { send(time.Minute) })
		}
		w.setSubscription(other, x, x.subscription, "CANCELLED")
		if n < tries {
			send(0)
		}
		sent.Wait()
		accepted := w.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND dedupe_key = 'u/' || $2
 AND position > (SELECT max(position) FROM event_log_rows WHERE tenant_id = $1 AND topic = 6)`, x.id, e.EventID)
		x.subscription = w.subscribe(at, x)
		if accepted == 1 {
			return e
		}
	}
	w.t.Fatal("no event was accepted after the cancellation")
	return event{}
}

type deadLetter struct {
	ID, Stage, Status, Code, EventID string
	RetryCount                       int
}

// letter waits until the tenant's only dead letter has a status.
func (w *deployment) letter(at *instance, x *tenant, status string) deadLetter {
	w.t.Helper()
	var page struct{ Data []deadLetter }
	within(w.t, "the only dead letter is "+status, func(context.Context) (bool, string) {
		w.ask(w.operator, http.MethodGet, at, "/api/v1/dead-letters?tenantId="+x.id, nil, &page, http.StatusOK)
		return len(page.Data) == 1 && page.Data[0].Status == status, fmt.Sprintf("%+v", page.Data)
	})
	return page.Data[0]
}
