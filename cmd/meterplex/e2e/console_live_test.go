package e2e

import (
	"net/url"
	"strings"
	"testing"

	"github.com/go-rod/rod"
)

// tailSurvivesACut: a proxy cuts the connection of the live tail. The page says since when it is not updated, connects again by itself, and shows each event once.
func tailSurvivesACut(t *testing.T, w *consoleWorld, b *rod.Browser) {
	x := w.createTenants(w.at, 1)[0]
	between := newProxy(t, func() string { return strings.TrimPrefix(w.at.url(), "http://") })
	between.start()
	p := newTab(t, b, between.url(), true)
	p.signIn(w.operator, url.QueryEscape("/console/events?tenantId="+x.id+"&subject=meterplex.usage.event.recorded"))
	state := `document.getElementById("tail-state").textContent`
	p.becomes("the tail is live", state, func(now string) bool { return now == "Live" })
	shown := func(ids ...string) func(string) bool {
		return func(text string) bool {
			for _, id := range ids {
				if strings.Count(text, id) != 1 {
					return false
				}
			}
			return true
		}
	}
	tail := `[...document.querySelectorAll("#tail tr")].map(r => r.textContent).join(" ")`
	w.ingest(w.at, x, "accepted", events("before-cut", 1, "api_calls")...)
	p.becomes("the tail shows the first event", tail, shown("before-cut-0"))
	between.set(cuts)
	p.becomes("the tail is cut", state, func(now string) bool { return strings.HasPrefix(now, "Not updated since") })
	w.ingest(w.at, x, "accepted", events("while-cut", 2, "api_calls")...)
	between.set(passes)
	w.ingest(w.at, x, "accepted", events("after-cut", 1, "api_calls")...)
	p.becomes("the tail goes on", tail, shown("before-cut-0", "while-cut-0", "while-cut-1", "after-cut-0"))
	if now := p.eval(state); now != "Live" {
		t.Errorf("the tail says %q", now)
	}
}
