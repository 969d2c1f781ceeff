package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// P7: usage crosses thresholds of an account and of a METERED feature, once each although the instance is killed meanwhile; the webhook
// gets each crossing, and verify proves them.
func TestP7_ThresholdsReachAWebhookThoughTheInstanceIsKilled(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	var mu sync.Mutex
	got := map[string]string{} // by webhook-id
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e struct {
			Data struct {
				Feature, Before, After string
				Amount, Percent        int64
			}
		}
		err := json.NewDecoder(r.Body).Decode(&e)
		mu.Lock()
		defer mu.Unlock()
		got[r.Header.Get("webhook-id")] = fmt.Sprintf("%s %d (%d) from %s to %s", e.Data.Feature, e.Data.Amount, e.Data.Percent,
			e.Data.Before,
			e.Data.After)
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(endpoint.Close)
	received := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Values(got))
	}
	dies := w.serve("", hooksAllowed)
	w.catalogue(dies)
	x := w.createTenants(dies, 1)[0]
	key, tenant := w.keyOf(dies, x, "webhooks:manage", "entitlements:reserve"), "/api/v1/tenants/"+x.id
	w.ask(key, http.MethodPost, dies, tenant+"/thresholds", object{"feature": "calls", "percent": 80}, nil, http.StatusCreated)
	w.ask(key, http.MethodPost, dies, tenant+"/thresholds", object{"amount": 5}, nil, http.StatusCreated)
	hook := object{"url": endpoint.URL, "events": []string{"threshold.crossed"}}
	w.ask(w.operator, http.MethodPost, dies, tenant+"/webhooks", hook, nil, http.StatusCreated)
	const consume = "/api/v1/entitlements/calls/consume"
	consumed := func(at *instance, id string, amount int) {
		w.ask(key, http.MethodPost, at, consume, object{"eventId": id, "amount": amount}, nil, http.StatusOK)
	}
	consumed(dies, "first", 790)
	w.ingest(dies, x, "accepted", events("metered", 3, "api_calls")...) // 1, 2 and 3
	var sent sync.WaitGroup
	sent.Go(func() {
		_, _, _ = w.call(t.Context(), key, http.MethodPost, dies.url()+consume, object{"eventId": "crosses", "amount": 20})
	})
	dies.kill()
	next := w.serve("", hooksAllowed)
	sent.Wait()
	consumed(next, "crosses", 20)
	want := []string{"api_calls 5 (0) from 3 to 6", "calls 5 (0) from 0 to 790", "calls 800 (80) from 790 to 810"}
	within(t, "the webhook has the events", func(context.Context) (bool, string) {
		return len(received()) >= len(want), strings.Join(received(), "\n")
	})
	consumed(next, "more", 50)
	w.drain()
	if got := received(); !slices.Equal(got, want) {
		t.Errorf("the webhook has\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := w.count(`SELECT count(*) FROM event_log_rows WHERE subject = 65`); n != len(want) {
		t.Errorf("the log has %d crossings", n)
	}
	w.finish()
}
