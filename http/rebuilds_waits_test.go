package http_test

import (
	"strings"
	"testing"
)

// A rebuild without progress names the role that must run, after a minute.
func TestARebuildNamesTheRoleItWaitsFor(t *testing.T) {
	w := newTestService(t)
	made := w.want(202, call{"POST", "/api/v1/projections/usage_aggregates/rebuilds", bootstrap, nil, `{"reason":"x"}`})
	note := func() any {
		progress, _ := w.want(200, call{method: "GET", path: "/api/v1/rebuilds/" + made["id"].(string),
			key: bootstrap})["progress"].(map[string]any)
		return progress["note"]
	}
	w.same("at once", note(), nil)
	w.exec(`UPDATE projection_rebuilds SET created_at = created_at - interval '1 minute'`)
	if got, _ := note().(string); !strings.Contains(got, "serve --roles=projector") {
		t.Errorf("after a minute: %q", got)
	}
	w.exec(`UPDATE consumer_checkpoints SET joined = true WHERE NOT joined AND partition = 7`)
	w.same("under way", note(), nil)
}
