package http_test

import (
	nethttp "net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// recorded returns how many events of a subject are in the log with a reason and via: console.
func (b *browser) recorded(subject events.Subject, reason string) (n int) {
	b.Helper()
	b.must(b.pool.QueryRow(b.Context(), `SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin
 WHERE l.subject = $1 AND o.via = 'console' AND o.actor_type = 'api_key' AND o.actor_id <> '' AND ($2 = '' OR l.payload ->> 'reason' = $2)`, int16(subject), reason).Scan(&n))
	return n
}

// TestConsole_DeadLettersAreShownByCauseWithTheMemberAtFault: groups with counts and trend, the list by all filters, and the sample.
func TestConsole_DeadLettersAreShownByCauseWithTheMemberAtFault(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A <script>alert(1)</script>")
	w.rejections(a, "gone", 3)
	w.rejections(a, "lost", 1)
	b := w.signIn(bootstrap)
	page := b.open("/console/dead-letters")
	b.shows(page, "feature_not_found", "Feature &#34;gone&#34; not found", `<td class="number">3</td><td class="number">3</td><td class="number">0</td><td class="number">3</td><td class="number">3</td>`)
	fingerprint := w.letters("?feature=gone")[0]["fingerprint"].(string)
	one := b.open("/console/dead-letters?feature=gone&fingerprint=" + fingerprint + "&status=FAILED&stage=VALIDATION&tenantId=" + a.id + "&reason=feature_not_found&topic=usage.raw")
	b.shows(one, "gone")
	if strings.Contains(string(one.body), "lost") {
		t.Error("the filter of a feature shows another's dead letters")
	}
	b.shows(b.open("/console/dead-letters?from="+url.QueryEscape(time.Now().Add(time.Hour).UTC().Format(time.RFC3339))), "No dead letter matches.")
	id := w.letters("?feature=gone")[0]["id"].(string)
	b.shows(b.open("/console/dead-letters/"+id), "<mark>&#34;feature&#34;: &#34;gone&#34;</mark>", "&#34;amount&#34;: 1,", `action="/console/dead-letters/`+id+`/retry"`)
	if got := b.open("/console/dead-letters/" + newID().String()); got.status != 404 || !strings.Contains(string(got.body), "dead_letter_not_found") && !strings.Contains(string(got.body), "not_found") {
		t.Errorf("an unknown dead letter gives %d", got.status)
	}
}

// TestConsole_ABulkChangesTheDeadLettersOfItsPreview: the preview counts; if the number has changed, the action changes none and shows the new one.
func TestConsole_ABulkChangesTheDeadLettersOfItsPreview(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.rejections(a, "gone", 3)
	w.rejections(a, "lost", 2)
	b := w.signIn(bootstrap)
	at := "/console/dead-letters/bulk?action=discard&feature=gone&reason=feature_not_found&status=FAILED"
	page := b.open(at)
	b.shows(page, "The filter matches <strong>3</strong> dead letters. <strong>3</strong> of them would be discarded.", "-X POST")
	before := w.stored()
	w.rejections(a, "gone", 1)
	arrived := w.stored() - before
	refused := b.act(page, "/console/dead-letters/bulk/discard", "a test's", nil)
	if body := string(refused.body); refused.status != nethttp.StatusConflict || !strings.Contains(body, "state_changed") || !strings.Contains(body, "<strong>4</strong> dead letters") || !strings.Contains(body, "a test&#39;s") {
		t.Errorf("a bulk of another number gives %d:\n%s", refused.status, body)
	}
	if got := w.stored() - before; got != arrived {
		t.Errorf("a refused bulk appended %d events", got-arrived)
	}
	page = b.open(at)
	done := b.act(page, "/console/dead-letters/bulk/discard", "a test's", nil)
	if to := done.header.Get("Location"); !strings.Contains(to, "feature=gone") || !strings.Contains(to, "reason=feature_not_found") {
		t.Errorf("the bulk leads to %s", to)
	}
	b.shows(b.follow(done), "Done: Discard these dead letters.")
	b.follow(b.act(page, "/console/dead-letters/bulk/discard", "a test's", nil))
	if n := b.recorded(events.DeadLetterClosed, ""); n != 4 {
		t.Errorf("%d discards instead of 4", n)
	}
	w.fold()
	if left := w.letters("?feature=lost&status=FAILED"); len(left) != 2 {
		t.Errorf("%d dead letters outside of the filter are left", len(left))
	}
	b.shows(b.open(at), "The filter matches <strong>0</strong>")
	for query, code := range map[string]string{"action=retry": "filter_empty", "action=retry&tenantId=x": "", "action=both&feature=gone": "action_invalid"} {
		if body := string(b.open("/console/dead-letters/bulk?" + query).body); !strings.Contains(body, code) || !strings.Contains(body, `class="problem"`) {
			t.Errorf("%s shows no problem %s", query, code)
		}
	}
}
