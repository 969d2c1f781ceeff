package http_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestP12_PagesEndByBytes: a page of large entries ends early, and the pages after it have the rest, each entry once.
func TestP12_PagesEndByBytes(t *testing.T) {
	w, a := newServiceWithAccount(t)
	const large = 80
	w.rejections(a, "none", large)
	w.exec(`INSERT INTO tenants (id, name, class, status, data_residency, created_at, metadata)
 SELECT gen_random_uuid(), name, class, status, data_residency, created_at, metadata FROM tenants, generate_series(1, $1::int)
 WHERE id = $2`, large, a.id)
	w.exec(`UPDATE tenants SET metadata = (SELECT jsonb_object_agg(n, repeat('x', 500)) FROM generate_series(1, 50) n)`)
	w.exec(`UPDATE dead_letter_events SET details = json_build_object('text', repeat('x', 30000))`)
	for _, path := range []string{"/api/v1/tenants", "/api/v1/dead-letters"} {
		seen, pages := map[string]bool{}, 0
		for cursor := ""; pages == 0 || cursor != ""; pages++ {
			got := w.do(call{method: "GET", path: path + "?limit=1000" + cursor, key: bootstrap})
			if n := len(got.body); got.status != 200 || n > 1<<20+1<<16 {
				t.Fatalf("a page of %s: %d, %d bytes: %.200s", path, got.status, n, got.body)
			}
			var page map[string]any
			w.must(json.Unmarshal(got.body, &page))
			for _, row := range rowsIn(page) {
				id := row["id"].(string)
				if seen[id] {
					t.Errorf("%s: %s twice", path, id)
				}
				seen[id] = true
			}
			cursor = ""
			if next, ok := page["nextCursor"].(string); ok {
				cursor = "&cursor=" + next
			}
		}
		if len(seen) < large || pages < 2 || pages > 5 {
			t.Errorf("%s: %d entries on %d pages", path, len(seen), pages)
		}
	}
	first := w.do(call{method: "GET", path: "/api/v1/tenants?limit=2", key: bootstrap})
	if n := strings.Count(string(first.body), `"status"`); n != 2 {
		t.Errorf("a page of two entries has %d", n)
	}
}
