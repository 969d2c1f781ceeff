package http_test

import "testing"

// P5: changed keys apply after all usage that is recorded, also by a server whose clock is days ahead, and after the
// keys before them: live and rebuilt usage have the same groups.
func TestP5_ChangedKeysApplyAfterRecordedUsage(t *testing.T) {
	w := newTestService(t)
	put := func(keys ...string) {
		t.Helper()
		w.do(call{method: "PUT", path: "/api/v1/features/grouped", key: bootstrap, body: map[string]any{"name": "Grouped", "type": "METERED", "groupBy": keys}})
	}
	put()
	w.asOwner(`UPDATE log_heads SET recorded_at = now() + interval '2 days' WHERE partition = 7`)
	put("region")
	put("region", "model")
	w.asOwner(`UPDATE log_heads SET recorded_at = now() WHERE partition = 7`)
	put("model")
	var late, ordered bool
	w.must(w.pool.QueryRow(t.Context(), `SELECT bool_and(since > now() + interval '2 days'),
 array_agg(array_to_string(keys, '+') ORDER BY since) = '{region,region+model,model}' FROM feature_groupings WHERE feature = 'grouped'`).Scan(&late, &ordered))
	if !late || !ordered {
		t.Errorf("after the usage of a fast server: %t, in the order of the changes: %t", late, ordered)
	}
}
