package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// hooked is an endpoint that keeps the events that it gets, by their ids.
type hooked struct {
	*httptest.Server
	mu  sync.Mutex
	got map[string]string
}

func newHooked(t *testing.T) *hooked {
	h := &hooked{got: map[string]string{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e struct {
			Type string
			Data struct {
				Feature, Before, After string
				Amount, Percent        int64
			}
		}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &e)
		}
		if err != nil {
			t.Errorf("%s: %v", body, err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got[r.Header.Get("webhook-id")] = fmt.Sprintf("%s %s %d (%d) from %s to %s", e.Type, e.Data.Feature, e.Data.Amount, e.Data.Percent, e.Data.Before, e.Data.After)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hooked) all() (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, text := range h.got {
		list = append(list, text)
	}
	slices.Sort(list)
	return list
}

// Usage crosses thresholds of an account and of a METERED feature, once each although the instance is killed meanwhile; the webhook gets both, and verify proves them.
func TestP7_ThresholdsReachAWebhookThoughTheInstanceIsKilled(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	const setting = "METERPLEX_WEBHOOK_ALLOW=127.0.0.0/8"
	dies := w.serve("", setting)
	w.catalogue(dies)
	x := w.createTenants(dies, 1)[0]
	h := newHooked(t)
	manages := w.keyOf(dies, x, "webhooks:manage", "entitlements:reserve")
	tenant := "/api/v1/tenants/" + x.id
	w.ask(manages, http.MethodPost, dies, tenant+"/thresholds", object{"feature": "calls", "percent": 80}, nil, http.StatusCreated)
	w.ask(manages, http.MethodPost, dies, tenant+"/thresholds", object{"amount": 5}, nil, http.StatusCreated)
	w.ask(manages, http.MethodPost, dies, tenant+"/webhooks", object{"url": h.URL, "events": []string{"threshold.crossed"}}, nil, http.StatusCreated)
	consume := func(at *instance, id string, amount int) {
		w.ask(manages, http.MethodPost, at, "/api/v1/entitlements/calls/consume", object{"eventId": id, "amount": amount}, nil, http.StatusOK)
	}
	consume(dies, "first", 790)
	w.ingest(dies, x, "accepted", events("metered", 3, "api_calls")...) // 1, 2 and 3
	w.settle(dies, x)
	var sent sync.WaitGroup
	sent.Go(func() {
		_, _, _ = w.callOnceServed(t.Context(), manages, http.MethodPost, dies.url()+"/api/v1/entitlements/calls/consume", object{"eventId": "crosses", "amount": 20})
	})
	dies.kill()
	goesOn := w.serve("", setting)
	sent.Wait()
	consume(goesOn, "crosses", 20)
	want := []string{"threshold.crossed api_calls 5 (0) from 3 to 6", "threshold.crossed calls 5 (0) from 0 to 790", "threshold.crossed calls 800 (80) from 790 to 810"}
	within(t, "the webhook has the events", func(context.Context) (bool, string) {
		got := h.all()
		return len(got) >= len(want), strings.Join(got, "\n")
	})
	consume(goesOn, "more", 50)
	w.settle(goesOn, x)
	if got := h.all(); !slices.Equal(got, want) {
		t.Errorf("the webhook has\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := w.count(`SELECT count(*) FROM event_log_rows WHERE subject = 65`); n != 3 {
		t.Errorf("the log has %d crossings", n)
	}
	p := w.verify(goesOn, "--only", "database")
	if failed := p.failedChecks(); len(failed) > 0 || p.code != 0 || !strings.Contains(p.String(), "3 crossings") {
		t.Errorf("%s", p.String())
	}
	goesOn.stop()
}
