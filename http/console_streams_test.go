package http_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestConsole_AForgedLastEventIDShowsNoMore: a place that cannot be is a page with a problem, and one of another tenant's event shows that tenant's events to nobody.
func TestConsole_AForgedLastEventIDShowsNoMore(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, other := w.newAccount("A"), w.newAccount("B")
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
}
