package http_test

import (
	"fmt"
	"strings"
	"testing"
)

const recordedLive = "/console/events/live?subject=meterplex.usage.event.recorded"

// TestConsole_P9_LivePartsAreOfTheirTenant: visitors who ask for the log by the same address share its read only if they have the same
// rights.
func TestConsole_P9_LivePartsAreOfTheirTenant(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	accounts := []*account{w.newAccount("A"), w.newAccount("B"), w.newAccount("C")}
	for n, a := range accounts {
		w.ingest(a, batch(event(fmt.Sprintf("of-%d", n), nil)))
	}
	for n, a := range accounts {
		if rows := string(w.signIn(a.key).open(recordedLive).body); strings.Count(rows, "<td") == 0 || strings.Count(rows, "of-") != 1 ||
			!strings.Contains(rows, fmt.Sprintf("of-%d&#34;", n)) {
			t.Errorf("tenant %d sees\n%s", n, rows)
		}
	}
	b := w.signIn(bootstrap)
	b.shows(b.open(recordedLive), "of-0&#34;", "of-1&#34;", "of-2&#34;")
}

// TestConsole_EventsAreShownWhileATenantHasNoStreamLeft: the page says that the newest are not shown, and its script asks again.
func TestConsole_EventsAreShownWhileATenantHasNoStreamLeft(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("shown", nil)))
	b := w.signIn(a.key)
	for range 4 {
		defer w.listen(t.Context(), a.key, "", "").body.Close()
	}
	page := b.open("/console/events")
	if body := string(page.body); page.status != 200 || !strings.Contains(body, `data-live="/console/events/live?"`) ||
		!strings.Contains(body, "<code>rate_limited</code>") || !strings.Contains(body, "shown&#34;") {
		t.Errorf("without a stream left the page is:\n%s", body)
	}
	b.pageRefused("the newest events", b.open("/console/events/live"), 429, "rate_limited")
}
