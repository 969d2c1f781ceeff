package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// adminURL returns the address of health and metrics that the instance logged at its last start.
func (i *instance) adminURL() (url string) {
	i.t.Helper()
	within(i.t, "the instance logs its admin address", func(context.Context) (bool, string) {
		for _, line := range i.linesOfRun() {
			if _, at, found := strings.Cut(line, "/livez, /readyz and /metrics are at "); found {
				url = at
			}
		}
		return url != "", ""
	})
	return url
}

// page returns the status and the body of an answer to a request without a key.
func page(w *deployment, url string) (int, string) {
	w.t.Helper()
	status, body, err := w.call(w.t.Context(), "", http.MethodGet, url, nil)
	if err != nil {
		w.t.Fatalf("GET %s: %v", url, err)
	}
	return status, string(body)
}

// The admin address serves health, metrics and profiles of instances with and without the API, and
// the other address refuses these paths. It answers until the instance ends: not ready while open
// requests are finished.
func TestTheAdminAddress(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	api := w.serve("", "METERPLEX_ADMIN_ADDR=127.0.0.1:0")
	w.catalogue(api)
	x := w.createTenants(api, 1)[0]
	w.ingest(api, x, "accepted", events("e", 5, "api_calls")...)
	w.drain()
	back := w.serve("relay,validator", "METERPLEX_ADMIN_ADDR=127.0.0.1:0", "METERPLEX_HTTP_ADDR="+strings.TrimPrefix(api.url(), "http://"))
	for _, at := range []string{api.adminURL(), back.adminURL()} {
		for path, part := range map[string]string{"/livez": `"live"`, "/readyz": `"roles":"ok"`, "/metrics": "\nmeterplex_log_head ", "/debug/pprof/goroutine?debug=1": "goroutine profile:"} {
			if status, body := page(w, at+path); status != http.StatusOK || !strings.Contains(body, part) {
				t.Errorf("GET %s%s: %d %.200s", at, path, status, body)
			}
		}
		if status, body := page(w, at+"/api/v1/tenants"); status != http.StatusNotFound {
			t.Errorf("%s serves the API: %d %s", at, status, body)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/debug/pprof/"} {
		if status, body := page(w, api.url()+path); status != http.StatusNotFound {
			t.Errorf("GET %s at the address of the API: %d %.200s", path, status, body)
		}
	}
	back.stop()
	endWhileARequestIsOpen(w, api, x)
	api.start()
	w.settle(api, x)
	w.finish()
}

// endWhileARequestIsOpen stops an instance whose API waits for a lock, and requests the admin address meanwhile.
func endWhileARequestIsOpen(w *deployment, i *instance, x *tenant) {
	w.t.Helper()
	held, err := w.sql.Begin(w.t.Context())
	must.OK(w.t, err)
	defer held.Rollback(context.WithoutCancel(w.t.Context()))
	if _, err := held.Exec(w.t.Context(), `SELECT FROM log_heads ORDER BY partition FOR UPDATE`); err != nil {
		w.t.Fatal(err)
	}
	url, admin, answered, ended := i.url(), i.adminURL(), make(chan int, 1), make(chan struct{})
	batch := events("held", 1, "api_calls")
	x.ledger.sending(batch)
	go func() {
		status, _, _ := w.call(w.t.Context(), x.key, http.MethodPost, url+"/api/v1/usage/events", object{"events": batch})
		answered <- status
	}()
	within(w.t, "the request waits for the lock", func(context.Context) (bool, string) {
		n := w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		return n > 0, fmt.Sprint(n)
	})
	go func() { defer close(ended); i.stop() }()
	within(w.t, "the instance is not ready any more", func(context.Context) (bool, string) {
		status, body := page(w, admin+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "roles"), fmt.Sprint(status, body)
	})
	for _, path := range []string{"/livez", "/metrics"} {
		if status, body := page(w, admin+path); status != http.StatusOK {
			w.t.Errorf("GET %s while the instance ends: %d %s", path, status, body)
		}
	}
	must.OK(w.t, held.Commit(w.t.Context()))
	if status := <-answered; status != http.StatusAccepted && status != http.StatusServiceUnavailable {
		w.t.Errorf("the open request was answered %d", status)
	}
	<-ended
}
