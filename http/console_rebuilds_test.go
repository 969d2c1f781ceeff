package http_test

import (
	nethttp "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// TestConsole_APromotionOfAnotherDifferenceIsRefused: the page shows the new figures, and no reader sees another figure.
func TestConsole_APromotionOfAnotherDifferenceIsRefused(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	b := w.signIn(bootstrap)
	at := "/console/rebuilds/" + id + "/diff"
	page := b.open(at)
	b.shows(page, `<strong>33</strong>`, `<strong>69</strong>`, "verdicts, 6 counted", "Largest differences")
	behind := b.open(at + "/events?feature=storage&periodKey=lifetime&tenantId=" + a.id)
	b.shows(behind, "s0", "s2", "Not explained<strong>0</strong>", "Explained by events<strong>22</strong>")
	w.ingest(a, batch(event("late", map[string]any{"feature": "storage", "amount": 7})))
	w.foldBoth()
	refused := b.act(page, at+"/promote", "as displayed", nil)
	if body := string(refused.body); refused.status != nethttp.StatusConflict || !strings.Contains(body, "state_changed") || !strings.Contains(body, "<strong>40</strong>") || !strings.Contains(body, "as displayed") {
		t.Errorf("a stale promotion gives %d:\n%s", refused.status, body)
	}
	if n := b.recorded(events.RebuildPromoted, ""); n != 0 || w.figure(a) != "29" {
		t.Errorf("%d promotions, the figure is %s", n, w.figure(a))
	}
	b.shows(b.follow(b.act(b.open(at), at+"/promote", "as displayed", nil)), "PROMOTED")
}

// TestConsole_AVerifyShowsDriftAndRepairsIt: from the form to the keys that differ.
func TestConsole_AVerifyShowsDriftAndRepairsIt(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	_, err := w.pool.Exec(t.Context(), `UPDATE usage_aggregates SET amount = amount + 5 WHERE tenant_id = $1 AND feature = 'storage'`, a.id)
	w.must(err)
	defer w.rebuilding()()
	b := w.signIn(bootstrap)
	for _, repair := range []bool{false, true} {
		form, more := b.follow(b.open("/console/new/verify?projection=usage_aggregates")), url.Values{}
		state := "ABANDONED"
		if repair {
			more.Set("repair", "true")
			state = "PROMOTED"
		}
		done := b.act(form, "/console/new/verify", "nightly", more)
		at, _, _ := strings.Cut(done.header.Get("Location"), "?")
		id := strings.TrimPrefix(at, "/console/rebuilds/")
		if done.status != nethttp.StatusSeeOther {
			t.Fatalf("verify gives %d:\n%s", done.status, done.body)
		}
		w.awaitState(id, state)
		b.shows(b.open(at), "Keys that differ from the log</dt><dd>1</dd>", `<td class="number">27</td><td class="number">22</td><td class="number">-5</td>`)
	}
	if w.figure(a) != "22" {
		t.Errorf("after the repair the figure is %s", w.figure(a))
	}
}

// TestConsole_ADifferenceOfAClosedPeriodIsACaution: also if its key is neither on the page nor among the greatest differences.
func TestConsole_ADifferenceOfAClosedPeriodIsACaution(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	_, err := w.pool.Exec(t.Context(), `INSERT INTO usage_aggregates SELECT (jsonb_populate_record(u, jsonb_build_object('feature', 'f' || lpad(n::text, 62, '0'), 'amount', CASE WHEN u.generation > 1 THEN 1000 ELSE 1 END))).*
 FROM usage_aggregates u, generate_series(1, 300) n WHERE u.tenant_id = $1 AND u.feature = 'storage'`, a.id)
	w.must(err)
	_, err = w.pool.Exec(t.Context(), `INSERT INTO usage_aggregates SELECT (jsonb_populate_record(u, jsonb_build_object('feature', 'zeta', 'period_key', '2026-03', 'amount', u.generation))).*
 FROM usage_aggregates u WHERE u.tenant_id = $1 AND u.feature = 'storage'`, a.id)
	w.must(err)
	b := w.signIn(bootstrap)
	at := "/console/rebuilds/" + id + "/diff"
	const caution = "CAUTION</strong>: 1 of the keys that differ is of a closed period"
	b.hides(b.open(at), "closed period")
	for _, c := range []struct {
		change string
		closed bool
	}{{"close_requested", false}, {"closed", true}, {"reopened", false}} {
		w.asOwner(`INSERT INTO period_changes SELECT $1, count(*) + 1, '2026-03', 1, $2, now() FROM period_changes`, a.id, c.change)
		page := b.open(at)
		b.shows(page, at+"/promote", "Next page", "Keys that differ<strong>303</strong>")
		if got := strings.Contains(string(page.body), caution); got != c.closed || strings.Contains(string(page.body), "zeta") {
			t.Errorf("the period is %s, and the caution is shown: %t", c.change, got)
		}
		if c.closed {
			b.shows(b.open(at+"?feature=zeta"), caution)
			b.hides(b.open(at+"?feature=storage"), "closed period")
		}
	}
}

// isRead is true if a text says that a rebuild has read all events: 22 of them, or some more if a tenant's partition is the platform's, too.
func isRead(text string) bool {
	read := regexp.MustCompile(`(\d+) of (\d+) events`).FindStringSubmatch(text)
	return read != nil && read[1] == read[2] && len(read[1]) == 2 && read[1] >= "22"
}

// TestConsole_TheProgressOfARebuildIsLive: each event of the stream is the progress as the page shows it.
func TestConsole_TheProgressOfARebuildIsLive(t *testing.T) {
	w, _, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	b := w.signIn(bootstrap)
	text, _ := b.follows("/console/rebuilds/" + id + "/stream").next()
	if !strings.Contains(text, "<dt>State</dt><dd>READY") || !isRead(text) {
		t.Errorf("the stream gives %s", text)
	}
}
