package http_test

import (
	"strings"
	"testing"
)

// TestConsole_ADifferenceOfAClosedPeriodIsACaution: also if its key is neither on the page nor among the greatest differences.
func TestConsole_ADifferenceOfAClosedPeriodIsACaution(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	w.exec(`INSERT INTO usage_aggregates SELECT (jsonb_populate_record(u, jsonb_build_object('feature', 'f' || lpad(n::text, 62, '0'),
		'amount', CASE WHEN u.generation > 1 THEN 1000 ELSE 1 END))).*
 FROM usage_aggregates u, generate_series(1, 300) n WHERE u.tenant_id = $1 AND u.feature = 'storage'`, a.id)
	w.exec(`INSERT INTO usage_aggregates SELECT (jsonb_populate_record(u, jsonb_build_object('feature', 'zeta', 'period_key', '2026-03',
		'amount', u.generation))).*
 FROM usage_aggregates u WHERE u.tenant_id = $1 AND u.feature = 'storage'`, a.id)
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
