package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// consoleWorld is an installation whose pages hold data, and hostile text.
type consoleWorld struct {
	*deployment
	at     *instance
	tenant *tenant
	letter string // a dead letter
	ready  string // a rebuild with a difference
	shown  equivalents
}

// canary is text that would run, were it not escaped.
const canary = `<script>window.canary=1</script>"><img src=x onerror="window.canary=1">`

func newConsoleWorld(t *testing.T) *consoleWorld {
	t.Helper()
	w := &consoleWorld{deployment: newDeployment(t), shown: equivalents{}}
	w.at = w.serve("")
	w.catalogue(w.at)
	w.tenant = w.createTenants(w.at, 1)[0]
	w.put("/prices/calls", object{"name": "Calls", "currency": "EUR", "model": "per_unit", "microUnits": 300})
	w.patch("/tenants/"+w.tenant.id, object{"name": "Acme " + canary, "metadata": object{`"><img src=x onerror="window.canary=1">`: canary}})
	w.post("/tenants/"+w.tenant.id+"/webhooks", object{"url": "https://example.com/meterplex", "events": []string{"threshold.crossed"}}, nil)
	w.post("/tenants/"+w.tenant.id+"/thresholds", object{"feature": "calls", "percent": 90}, nil)
	w.post("/operator-keys", object{"name": "audit", "scopes": []string{"audit"}}, nil)
	w.ingest(w.at, w.tenant, "accepted", spread(40)...)
	w.conflict()
	w.ask(w.keyOf(w.at, w.tenant, "entitlements:reserve"), http.MethodPost, w.at, "/api/v1/entitlements/calls/reservations",
		object{"reservationId": "job-7", "amount": 5, "ttlSeconds": 3600}, nil, http.StatusCreated)
	w.drain()
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1/replays", object{"topic": "usage.raw", "fromTime": "2026-01-01T00:00:00Z", "reason": "the search index lost events"}, nil, http.StatusAccepted)
	within(t, "the conflict is a dead letter", func(context.Context) (bool, string) {
		var page struct{ Data []struct{ ID string } }
		w.ask(w.operator, http.MethodGet, w.at, "/api/v1/dead-letters?tenantId="+w.tenant.id, nil, &page, http.StatusOK)
		if len(page.Data) > 0 {
			w.letter = page.Data[0].ID
		}
		return w.letter != "", fmt.Sprint(page)
	})
	w.differ()
	var started rebuild
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1/projections/usage_aggregates/rebuilds", object{"reason": "a fix of the fold"}, &started, http.StatusAccepted)
	w.ready = started.ID
	w.deployment.ready(w.at, w.ready)
	return w
}

// spread returns usage of the last half hour, minute by minute.
func spread(n int) []event {
	now := time.Now().UTC().Truncate(time.Minute)
	batch := events("event", n, "api_calls")
	for i := range batch {
		batch[i].Timestamp = now.Add(-time.Duration(i) * time.Minute)
	}
	return batch
}

// conflict sends an event again, with another amount.
func (w *consoleWorld) conflict() {
	w.t.Helper()
	other := spread(1)
	other[0].Amount += 93
	var answer object
	w.ask(w.tenant.key, http.MethodPost, w.at, "/api/v1/usage/events", object{"events": other}, &answer, http.StatusAccepted)
}

// differ makes one live figure wrong, so that a rebuild has a difference.
func (w *consoleWorld) differ() {
	w.t.Helper()
	if _, err := w.sql.Exec(w.t.Context(), `UPDATE usage_aggregates SET amount = amount + 7 WHERE tenant_id = $1 AND feature = 'api_calls'`, w.tenant.id); err != nil {
		w.t.Fatal(err)
	}
}

func (w *consoleWorld) put(path string, in any) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPut, w.at, "/api/v1"+path, in, nil, http.StatusCreated)
}

func (w *consoleWorld) patch(path string, in any) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPatch, w.at, "/api/v1"+path, in, nil, http.StatusOK)
}

func (w *consoleWorld) post(path string, in, out any) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1"+path, in, out, http.StatusCreated)
}

// usagePage is the address of the tenant's usage.
func (w *consoleWorld) usagePage() string {
	return "/console/usage?" + url.Values{"tenantId": {w.tenant.id}, "feature": {"api_calls"}}.Encode()
}
