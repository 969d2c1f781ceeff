package http_test

import (
	"encoding/json"
	"io"
	nethttp "net/http"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http/edge"
)

// A request whose key was accepted before the tenant was suspended may send its body later: its usage is recorded before the periods are
// closed, and is pushed.
func TestP8_TheDrainWaitsForRequestsThatBegan(t *testing.T) {
	w := newOffboardingWorld(t)
	body, send := io.Pipe()
	request, err := nethttp.NewRequest(nethttp.MethodPost, w.url+"/api/v1/usage/events", body)
	w.must(err)
	request.Header = nethttp.Header{"Authorization": {"Bearer " + w.a.key}, "Content-Type": {"application/json"}, "Expect": {"100-continue"}}
	transport := &nethttp.Transport{ExpectContinueTimeout: time.Hour} // the body is sent once the key was accepted
	defer transport.CloseIdleConnections()
	status := make(chan int, 1)
	go func() {
		answer, err := (&nethttp.Client{Transport: transport}).Do(request)
		if err != nil {
			status <- 0
			return
		}
		_ = answer.Body.Close()
		status <- answer.StatusCode
	}()
	text, err := json.Marshal(batch(event("slow", map[string]any{"amount": 4})))
	w.must(err)
	_, err = send.Write(text[:1])
	w.must(err)
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	for w.step(false) != "suspend" {
		t.Log("not suspended yet")
	}
	w.pass(edge.RequestTime + 10*time.Second)
	for range 3 {
		w.same("the step", w.step(false), "drain")
	}
	_, err = send.Write(text[1:])
	w.must(err)
	w.must(send.Close())
	w.same("the answer", <-status, 202)
	w.fold()
	w.until("", false)
	w.same("the provider's sum", w.provider.sum(), 22)
}

// A saga that has not stored its pushes is awaited as an open push is.
func TestP8_AnOffboardingWaitsForPushesThatAreNotStored(t *testing.T) {
	w := newOffboardingWorld(t)
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	w.until("push", false)
	w.exec(`INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, created_at)
 VALUES (gen_random_uuid(), 'billing_push', $1, 'adjust/lifetime/1/9', 'plan', 'RUNNING', now() + interval '1 hour', now())`, w.a.id)
	for range 3 {
		w.same("the step", w.step(false), "push")
	}
	w.same("status", w.status(), "SUSPENDED")
	w.exec(`UPDATE sagas SET next_at = now() WHERE key = 'adjust/lifetime/1/9'`)
	w.until("", false)
	w.same("status", w.status(), "ARCHIVED")
}
