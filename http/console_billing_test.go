package http_test

import (
	nethttp "net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
)

// hostile is text that a page must show as it is: as HTML it would run, end an attribute, or begin a formula.
const hostile = `=<script>alert("x")</script>'"&`

// hostileShown is hostile as html/template writes it in text.
const hostileShown = `=&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;&#39;&#34;&amp;`

// viaConsole counts the events of a subject that the console's actions made, by its key.
func (w *testService) viaConsole(subject events.Subject) (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log l JOIN log_origins o ON o.id = l.origin WHERE l.subject = $1 AND o.via = 'console' AND o.actor_type = 'api_key'`, int16(subject)).Scan(&n))
	return n
}

// once fails unless exactly n events of a subject were made by the console.
func (w *testService) once(subject events.Subject, n int) {
	w.Helper()
	if got := w.viaConsole(subject); got != n {
		w.Errorf("%d events of subject %d have via console, not %d", got, subject, n)
	}
}

// twice sends a form of a page two times at once and once more, and returns the page that they lead to: each click leads to the page of the first result.
func (b *browser) twice(page answer, path, reason string, more url.Values) answer {
	b.Helper()
	values := b.form(page, path)
	values.Set("reason", reason)
	for name, of := range more {
		values[name] = of
	}
	both := make(chan answer, 2)
	for range cap(both) {
		go func() { both <- b.post(path, values) }()
	}
	first, second := <-both, <-both
	again := b.act(page, path, "clicked again", more)
	for click, got := range []answer{first, second, again} {
		if got.status != nethttp.StatusSeeOther {
			b.Fatalf("click %d gives %d:\n%s", click+1, got.status, got.body)
		}
		if to, of := pathOf(got), pathOf(first); to != of {
			b.Errorf("click %d leads to %s, and the first to %s", click+1, to, of)
		}
		b.shows(b.follow(got))
	}
	return b.follow(first)
}

// pathOf returns the path that an answer leads to, without its query.
func pathOf(got answer) string {
	path, _, _ := strings.Cut(got.header.Get("Location"), "?")
	return path
}

// problemShown fails unless a page shows a problem with a code and a trace id, and holds a text.
func (b *browser) problemShown(page answer, status int, code string, texts ...string) {
	b.Helper()
	body := string(page.body)
	if page.status != status || !strings.Contains(body, `<code>`+code+`</code>`) || !strings.Contains(body, "Trace <code>") {
		b.Fatalf("the page gives %d, not %d with %s:\n%s", page.status, status, code, body)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			b.Errorf("the page does not show %q:\n%s", text, body)
		}
	}
}

func (b *browser) hides(page answer, texts ...string) {
	b.Helper()
	for _, text := range texts {
		if strings.Contains(string(page.body), text) {
			b.Fatalf("the page shows %q:\n%s", text, page.body)
		}
	}
}

// TestConsole_EntitlementsShowUsedHeldLimitAndReset: operators choose a tenant, a tenant's key sees its own, and its reservations are released once.
func TestConsole_EntitlementsShowUsedHeldLimitAndReset(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccount("B")
	w.accept(a, event("one", map[string]any{"amount": 123}))
	w.want(201, holding(a.key, "job/1", 77, 3600))
	w.want(201, holding(other.key, "of-another", 55, 3600))
	w.fold()
	b := w.signIn(bootstrap)
	b.shows(b.open("/console/entitlements"), "Choose a tenant", `/console/entitlements?tenantId=`+a.id)
	accounts := b.open("/console/entitlements?tenantId=" + a.id)
	b.shows(accounts, `<td class="number">123</td><td class="number">77</td><td class="number">1000</td>`, `value="123"`, "-01 00:00:00Z", "True at position")
	b.hides(accounts, "of-another")
	list := "/console/reservations?feature=api_calls&tenantId=" + a.id
	b.shows(b.open("/console/reservations?tenantId="+a.id), "held 77")
	b.shows(b.open(list), "job/1", "HELD", `<td class="number">77</td>`)
	b.hides(b.open(list), "of-another", "/release")
	if got := b.open(list + "&state=COMMITTED"); strings.Contains(string(got.body), "job/1") {
		t.Error("the filter has no effect")
	}

	own := w.signIn(a.key)
	own.shows(own.open("/console/entitlements"), "123", "77", "1000", "meterplex entitlements list")
	own.shows(own.open("/console/reservations"), "held 77")
	page := own.open("/console/reservations?feature=api_calls")
	released := own.twice(page, "/console/reservations/api_calls/job%2F1/release", "the job is dead", nil)
	own.shows(released, "RELEASED", "Done: Release.")
	w.once(events.ReservationReleased, 1)
	w.fold()
	own.shows(own.open("/console/entitlements"), `<td class="number">0</td>`)
	for _, path := range []string{"/console/entitlements/comparison?tenantId=" + a.id, "/console/adjustments", "/console/pushes", "/console/sagas", "/console/catalogue",
		"/console/tenants/" + a.id + "/periods", "/console/tenants/" + a.id + "/webhooks", "/console/tenants/" + a.id + "/thresholds"} {
		if got := own.open(path); got.status != 404 {
			t.Errorf("the tenant's key gets %d for %s", got.status, path)
		}
	}
	reader, _ := w.key(a.id, nil, commands.ScopeEntitlementsRead)
	b.hides(w.signIn(reader).open("/console/reservations?feature=api_calls"), "/release")
}
