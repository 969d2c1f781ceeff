package http_test

import (
	nethttp "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// TestConsole_ARebuildIsStartedComparedPromotedAndRolledBack: the walk of a logic fix, each action once, with figures of the database.
func TestConsole_ARebuildIsStartedComparedPromotedAndRolledBack(t *testing.T) {
	w, a, other := newRebuildWorld(t)
	b := w.signIn(bootstrap)
	form := b.follow(b.open("/console/new/rebuild?projection=usage_aggregates"))
	first := b.act(form, "/console/new/rebuild", "storage counts <twice>", url.Values{"workers": {"2"}})
	again := b.act(form, "/console/new/rebuild", "storage counts <twice>", url.Values{"workers": {"2"}})
	at, _, _ := strings.Cut(first.header.Get("Location"), "?")
	if path, _, _ := strings.Cut(again.header.Get("Location"), "?"); path != at || at == "" || b.recorded(events.RebuildRequested, "storage counts <twice>") != 1 {
		t.Errorf("a double click gives %s and %s", at, path)
	}
	id := strings.TrimPrefix(at, "/console/rebuilds/")
	b.shows(b.follow(first), "FOLDING", `data-stream="`+at+`/stream"`, "storage counts &lt;twice&gt;")
	stop := w.rebuilding()
	w.awaitState(id, "READY")
	stop()
	b.shows(b.open("/console/rebuilds"), id, "usage_aggregates/v1", "READY")
	ready := b.open(at)
	b.shows(ready, "READY", at+"/diff")
	if !isRead(string(ready.body)) {
		t.Errorf("the page shows %s", ready.body)
	}
	page := b.open(at + "/diff")
	b.shows(page, `<strong>33</strong>`, `<strong>69</strong>`, "verdicts, 6 counted", a.id, other.id, "Largest differences")
	if body := string(page.body); strings.Index(body, `<td class="number">22</td>`) > strings.Index(body, `<td class="number">11</td>`) {
		t.Error("the largest difference is not the first")
	}
	behind := b.open(at + "/diff/events?feature=storage&periodKey=lifetime&tenantId=" + a.id)
	b.shows(behind, "s0", "s2", "Not explained<strong>0</strong>", "Explained by events<strong>22</strong>")
	done := b.act(page, at+"/diff/promote", "checked by billing", nil)
	b.shows(b.follow(done), "PROMOTED", "Done: Promote the rebuild.")
	b.follow(b.act(page, at+"/diff/promote", "checked by billing", nil))
	if n := b.recorded(events.RebuildPromoted, "checked by billing"); n != 1 || w.figure(a) != "44" {
		t.Errorf("%d promotions, the figure is %s", n, w.figure(a))
	}
	page = b.open(at)
	b.shows(b.follow(b.act(page, at+"/rollback", "not yet", nil)), "ROLLED_BACK")
	b.follow(b.act(page, at+"/rollback", "not yet", nil))
	if n := b.recorded(events.RebuildRolledBack, "not yet"); n != 1 || w.figure(a) != "22" {
		t.Errorf("%d rollbacks, the figure is %s", n, w.figure(a))
	}
	b.follow(b.act(b.open(at+"/diff"), at+"/diff/promote", "checked by billing", nil)) // the state has returned, and the key has not
	if n := b.recorded(events.RebuildPromoted, "checked by billing"); n != 2 || w.figure(a) != "44" {
		t.Errorf("promoted again: %d promotions, the figure is %s", n, w.figure(a))
	}
	b.follow(b.act(b.open(at), at+"/rollback", "not yet", nil))
	page = b.open(at)
	if got := b.act(page, at+"/abandon", "", nil); got.status != nethttp.StatusBadRequest {
		t.Errorf("without a reason: %d", got.status)
	}
	b.shows(b.follow(b.act(page, at+"/abandon", "another fold", nil)), "ABANDONED")
	if n := b.recorded(events.RebuildAbandoned, "another fold"); n != 1 {
		t.Errorf("%d events of an abandoned rebuild", n)
	}
	if body := string(b.open(at + "/diff").body); !strings.Contains(body, "rebuild_not_ready") {
		t.Error("the difference of an abandoned rebuild shows no problem")
	}
}

// TestConsole_APromotionOfAnotherDifferenceIsRefused: the page shows the new figures, and no reader sees another figure.
func TestConsole_APromotionOfAnotherDifferenceIsRefused(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	b := w.signIn(bootstrap)
	at := "/console/rebuilds/" + id + "/diff"
	page := b.open(at)
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
	text := b.follows("/console/rebuilds/" + id + "/stream")()
	if !strings.Contains(text, "<dt>State</dt><dd>READY") || !isRead(text) {
		t.Errorf("the stream gives %s", text)
	}
}
