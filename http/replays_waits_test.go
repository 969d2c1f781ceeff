package http_test

import (
	"strings"
	"testing"
)

// A consumer's rewind is done by an instance with its role. The answer names the role
// and, if the rewind is overdue, says that such an instance must be started.
func TestARewindNamesTheRoleItWaitsFor(t *testing.T) {
	w := newTestService(t)
	made := w.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil, `{"consumer":"meterplex-usage-aggregator","to":"start","reason":"x"}`})
	if made["state"] != "RUNNING" || made["waitsFor"] != "an instance with the role aggregator" {
		t.Errorf("%v", made)
	}
	_, err := w.pool.Exec(w.Context(), `UPDATE replays SET created_at = created_at - interval '1 minute'`)
	w.must(err)
	path := "/api/v1/replays/" + made["id"].(string)
	if got, _ := w.want(200, call{method: "GET", path: path, key: bootstrap})["waitsFor"].(string); !strings.Contains(got, "serve --roles=aggregator") {
		t.Errorf("after a minute: %q", got)
	}
	_, err = w.pool.Exec(w.Context(), `UPDATE replays SET state = 'DONE', ended_at = now()`)
	w.must(err)
	if got := w.want(200, call{method: "GET", path: path, key: bootstrap}); got["waitsFor"] != nil {
		t.Errorf("done: %v", got)
	}
}
