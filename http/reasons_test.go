package http_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/edge"
)

// TestReasonsAreBounded: 500 wide characters are accepted by headers and bodies, though they have 2,000 bytes; others are refused before
// anything changes.
func TestReasonsAreBounded(t *testing.T) {
	w := newTestService(t)
	tenant := "/api/v1/tenants/" + w.newAccountlessTenant("A")
	wide, before := strings.Repeat("😀", 500), w.stored()
	named := func(reason string) call {
		return call{"PATCH", tenant, bootstrap, map[string]string{edge.HeaderReason: reason}, map[string]any{"name": "B"}}
	}
	offboard := call{"POST", tenant + "/offboard", bootstrap, nil, map[string]any{"reason": wide + "x"}}
	for _, reason := range []string{"%20%20", "a%0Ab", "a%E2%80%AEb", "%FF", "100%", url.PathEscape(wide + "x")} {
		w.refused(w.do(named(reason)), 400, "reason_invalid")
	}
	w.refused(w.do(offboard), 400, "reason_invalid")
	w.same("stored", w.stored(), before)
	w.want(200, named(url.PathEscape(wide)))
	offboard.body = map[string]any{"reason": wide}
	w.want(202, offboard)
}
