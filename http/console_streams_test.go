package http_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http"
)

// TestP9_ConsoleLiveTailsAreATenantsOwn: tenants who follow the log by the same address share no read of it.
func TestP9_ConsoleLiveTailsAreATenantsOwn(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	accounts, tails := []*account{w.newAccount("A"), w.newAccount("B"), w.newAccount("C")}, []*listener{}
	for _, a := range accounts {
		tails = append(tails, w.signIn(a.key).follows("/console/events/stream?subject=meterplex.usage.event.recorded"))
	}
	for round := range 4 { // the first ones may be read by each viewer for itself
		for n, a := range accounts {
			w.ingest(a, batch(event(fmt.Sprintf("round-%d-of-%d", round, n), nil)))
		}
		for n, l := range tails {
			if row, _ := l.next(); !strings.Contains(row, fmt.Sprintf("round-%d-of-%d&#34;", round, n)) {
				t.Fatalf("round %d: tenant %d follows %s", round, n, row)
			}
		}
	}
}

// TestConsole_ALiveTailKeepsItsConnection: between the shared reads a tail has no request to the API in work.
func TestConsole_ALiveTailKeepsItsConnection(t *testing.T) {
	w := newTestService(t, func(s *http.Server) { s.MaxConnections = 3 })
	w.catalogue()
	a := w.newAccount("A")
	l := w.signIn(a.key).follows("/console/events/stream?subject=meterplex.usage.event.recorded")
	for round := range 4 {
		w.client.CloseIdleConnections()
		w.ingest(a, batch(event(fmt.Sprint("round-", round), nil)))
		if row, ok := l.next(); !ok || !strings.Contains(row, fmt.Sprint("round-", round)) {
			t.Fatalf("round %d: %v %s", round, ok, row)
		}
		for range 3 {
			conn, err := net.Dial("tcp", w.addr)
			w.must(err)
			defer conn.Close()
		}
	}
}

// TestConsole_EventsAreShownWhileATenantHasNoStreamLeft: the page says that it is not live. A forged place is a page with a problem.
func TestConsole_EventsAreShownWhileATenantHasNoStreamLeft(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccountIn("B", func(p int16) bool { return p != a.partition() })
	w.ingest(a, batch(event("shown", nil)))
	w.ingest(other, batch(event("foreign", nil)))
	b := w.signIn(a.key)
	const notLive, stream = "Live updates are not available", "/console/events/stream"
	for _, place := range []string{"x", "1--1", "1-99999999999999999999", "' OR 1=1 --", "<script>", strings.Repeat("9", 5000)} {
		got := b.do(call{method: "GET", path: stream, header: b.header(map[string]string{"Last-Event-ID": place})})
		b.pageRefused("after "+place, got, 400, "position_invalid")
	}
	foreign := b.do(call{method: "GET", path: stream, header: b.header(map[string]string{"Last-Event-ID": w.positionOf(w.firstOf(other))})})
	if foreign.status == 200 || strings.Contains(string(foreign.body), "foreign") {
		t.Errorf("after another tenant's event a tenant gets %d:\n%s", foreign.status, foreign.body)
	}
	b.hides(b.open("/console/events"), notLive)
	for range 4 {
		defer w.listen(t.Context(), a.key, "", "").body.Close()
	}
	page := b.open("/console/events")
	b.hides(page, `id="tail"`)
	if body := string(page.body); !strings.Contains(body, notLive+": all streams of the log that a tenant may have are in use.") ||
		!strings.Contains(body, "shown&#34;") {
		t.Errorf("without a stream left the page is:\n%s", body)
	}
}
