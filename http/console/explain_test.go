package console

import (
	"net/http"
	"strings"
	"testing"
)

// A page of the events behind a figure may have none of them and still lead to the next.
func TestExplain_APageWithoutEventsLeadsToTheNext(t *testing.T) {
	f := newFixture(t)
	answer := func(next string) string {
		return `{"total":5,"eventCount":1,"adds":true,"asOfPosition":"3-4","data":[],"nextCursor":` + next + `}`
	}
	const path, none = "/console/usage/explain?tenantId=0190a1b2-0000-7000-8000-000000000000&feature=a&period=2026-05",
		"No event is counted in this figure"
	for _, c := range []struct{ path, next, shows string }{
		{path, `"c1"`, "cursor=c1"}, {path + "&cursor=c1", `"c2"`, "cursor=c2"}, {path + "&cursor=c2", "null", "No further event"},
		{path, "null", none},
	} {
		f.api = func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(answer(c.next))) }
		shown := f.Get(c.path, f.session).Body.String()
		if !strings.Contains(shown, c.shows) || strings.Contains(shown, none) != (c.shows == none) {
			t.Errorf("%s with the next page %s:\n%s", c.path, c.next, shown)
		}
	}
}
