package http_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestConsole_AForgedLastEventIDShowsNoMore: a place that cannot be is a page with a problem, and one of another tenant's event shows that tenant's events to nobody.
func TestConsole_AForgedLastEventIDShowsNoMore(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccountIn("B", func(p int16) bool { return p != a.partition() })
	w.ingest(a, batch(event("own", nil)))
	w.ingest(other, batch(event("foreign", nil)))
	operator, tenant := w.signIn(bootstrap), w.signIn(a.key)
	at := func(b *browser, path, place string) answer {
		return b.do(call{method: "GET", path: path, header: b.header(map[string]string{"Last-Event-ID": place})})
	}
	for _, place := range []string{"x", "-", "1-", "-1", "1-2-3", "99-1", "1-x", "1--1", "1-99999999999999999999", "1-1;2-2", "1-1,,2-2", "' OR 1=1 --", "<script>", strings.Repeat("9", 5000), uuid.Nil.String()} {
		for name, b := range map[string]*browser{"an operator": operator, "a tenant": tenant} {
			path := "/console/events/stream"
			if b == operator {
				path += "?tenantId=" + a.id
			}
			b.pageRefused(name+" after "+place, at(b, path, place), 400, "position_invalid")
		}
	}
	foreign := w.positionOf(w.firstOf(other))
	if got := at(tenant, "/console/events/stream", foreign); got.status == 200 || strings.Contains(string(got.body), "foreign") {
		t.Errorf("after another tenant's event a tenant gets %d:\n%s", got.status, got.body)
	}
	// In its own partition a tenant's tail may begin after any position.
	neighbour := w.newAccountIn("C", func(p int16) bool { return p == a.partition() })
	w.ingest(neighbour, batch(event("foreign", nil)))
	place := w.positionOf(w.firstOf(neighbour))
	w.ingest(neighbour, batch(event("foreign-too", nil)))
	w.ingest(a, batch(event("own-too", nil)))
	if row, _ := tenant.follows("/console/events/stream?subject=meterplex.usage.event.recorded&after=" + place).next(); !strings.Contains(row, "own-too&#34;") {
		t.Errorf("after an event of a neighbour in its partition a tenant follows %s", row)
	}
}

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

// TestConsole_EventsAreShownWhileATenantHasNoStreamLeft: the page tells that it is not live, the search finds a trace, and a tail waits for a stream.
func TestConsole_EventsAreShownWhileATenantHasNoStreamLeft(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("shown", nil)))
	b := w.signIn(a.key)
	const path = "/console/events?subject=meterplex.usage.event.recorded"
	const notLive = "Live updates are not available"
	if page := string(b.open(path).body); strings.Contains(page, notLive) || !strings.Contains(page, `id="tail"`) {
		t.Errorf("with streams left the page is not live:\n%s", page)
	}
	var open []*listener
	for range 4 {
		l := w.listen(t.Context(), a.key, "", "")
		defer l.body.Close()
		open = append(open, l)
	}
	page := string(b.open(path).body)
	if !strings.Contains(page, notLive+": all streams of the log that a tenant may have are in use.") || strings.Contains(page, `id="tail"`) || !strings.Contains(page, "shown&#34;") {
		t.Errorf("without a stream left the page is:\n%s", page)
	}
	time.AfterFunc(1500*time.Millisecond, func() { open[0].body.Close() })
	if row, _ := b.follows("/console/events/stream?last=1&subject=meterplex.usage.event.recorded").next(); !strings.Contains(row, "shown&#34;") {
		t.Errorf("once a stream is left, the tail shows %q", row)
	}
}
