package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// identityAnswer is the identity as the API returns it.
type identityAnswer struct {
	Holds      bool
	Total      identityTerms
	Partitions []identityTerms
}

// identityTerms are the terms of the identity.
type identityTerms struct {
	Accepted, Applied, Rejected, Undecided, Unapplied, Parked, Missing int64
}

// holds adds the terms up, too.
func (a identityAnswer) holds() bool {
	return a.Holds && len(a.Partitions) == 32 && !slices.ContainsFunc(append(a.Partitions, a.Total), func(x identityTerms) bool {
		return x.Missing != 0 || x.Accepted != x.Applied+x.Rejected+x.Undecided+x.Unapplied+x.Parked
	})
}

// A rejection is a dead letter; after its cause is fixed, a retry counts it once.
func TestP3_RejectedThenRetried(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	a, b := w.serve(""), w.serve("api")
	w.catalogue(a)
	x := w.createTenants(a, 1)[0]
	rejected := acceptThenReject(w, a, b, x)
	checkIdentity := func() {
		var answer identityAnswer
		if w.ask(w.operator, http.MethodGet, a, "/api/v1/system/identity", nil, &answer, http.StatusOK); !answer.holds() {
			t.Errorf("the identity does not hold: %+v", answer)
		}
	}
	w.drain()
	checkIdentity()
	letter := awaitLetter(w, a, x, "FAILED")
	if letter.EventID != rejected.EventID || letter.Stage != "VALIDATION" || letter.Code != "no_active_subscription" {
		t.Errorf("the dead letter is %+v, want one of %s", letter, rejected.EventID)
	}
	retry := "/api/v1/dead-letters/" + letter.ID + "/retry"
	w.ask(w.operator, http.MethodPost, a, retry, object{"reason": "renewed"}, nil, http.StatusAccepted)
	if done := awaitLetter(w, a, x, "RESOLVED"); done.ID != letter.ID || done.RetryCount != 1 {
		t.Errorf("after the retry: %+v", done)
	}
	w.ask(w.operator, http.MethodPost, a, retry, object{"reason": "again"}, nil, http.StatusConflict)
	w.drain()
	checkIdentity()
	var receipt struct{ Status string }
	w.ask(x.key, http.MethodGet, a, "/api/v1/usage/events/"+rejected.EventID, nil, &receipt, http.StatusOK)
	if receipt.Status != "AGGREGATED" {
		t.Errorf("the receipt says %s", receipt.Status)
	}
	w.ingest(a, x, "duplicate", rejected)
	w.finish()
}

// acceptThenReject returns an event that one instance accepts after another has cancelled the
// subscription, and renews the subscription. Caches may be stale for a moment only: after 20
// tries it sends both requests at once, until they are recorded in that order.
func acceptThenReject(w *deployment, at, other *instance, x *tenant) event {
	w.t.Helper()
	const tries = 20
	for n := range 5 * tries {
		try := x.ledger.acked() // makes ids unique
		awaitKeys(w, other, []*tenant{x})
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
		w.ask(w.operator, http.MethodPatch, other, "/api/v1/tenants/"+x.id+"/subscriptions/"+x.subscription, object{"status": "CANCELLED"},
			nil,
			http.StatusOK)
		if n < tries {
			send(0)
		}
		sent.Wait()
		accepted := w.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND dedupe_key = 'u/' || $2
 AND position > (SELECT max(position) FROM event_log_rows WHERE tenant_id = $1 AND topic = 6)`, x.id, e.EventID)
		x.subscription = subscribe(w, at, x)
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

// awaitLetter waits until the tenant's only dead letter has a status.
func awaitLetter(w *deployment, at *instance, x *tenant, status string) deadLetter {
	w.t.Helper()
	var page struct{ Data []deadLetter }
	within(w.t, "the only dead letter is "+status, func(context.Context) (bool, string) {
		w.ask(w.operator, http.MethodGet, at, "/api/v1/dead-letters?tenantId="+x.id, nil, &page, http.StatusOK)
		return len(page.Data) == 1 && page.Data[0].Status == status, fmt.Sprintf("%+v", page.Data)
	})
	return page.Data[0]
}
