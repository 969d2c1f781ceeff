package http_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// Thresholds are defined and removed while clients consume: a threshold is crossed by the request that rises to it if it was defined before it in the log, and not removed.
func TestThresholdsAreThoseOfTheLockedHead(t *testing.T) {
	w, a := newServiceWithAccount(t)
	path := "/api/v1/tenants/" + a.id + "/thresholds"
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for n := range 30 {
				if got := w.do(call{"POST", "/api/v1/entitlements/api_calls/consume", a.key, nil, fmt.Sprintf(`{"eventId":"c-%d-%d","amount":1}`, c, n)}); got.status != 200 {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	defined := map[int]map[string]any{}
	for value := 10; value <= 120; value += 10 {
		defined[value] = w.want(201, call{"POST", path, bootstrap, nil, fmt.Sprintf(`{"amount":%d}`, value)})
		if value%30 == 0 {
			w.want(204, call{method: "DELETE", path: path + "/" + fmt.Sprint(defined[value]["id"]), key: a.key})
		}
	}
	clients.Wait()
	defined[121] = w.want(201, call{"POST", path, a.key, nil, `{"percent":12}`}) // of 1000: 120 are used already
	defined[122] = w.want(201, call{"POST", path, a.key, nil, `{"feature":"api_calls","amount":122}`})
	w.want(200, consuming(a.key, "api_calls", "one-more", 2))
	for value, threshold := range defined {
		var at events.Position
		w.must(json.Unmarshal(fmt.Appendf(nil, "%q", threshold["position"]), &at))
		var crossed, expected, removed int64 // positions of the crossing, of the request that rises to the value, and of the removal; 0: none
		w.must(w.pool.QueryRow(w.Context(), `SELECT
 coalesce((SELECT c.position FROM event_log_rows l JOIN event_log_rows c ON c.event_id = l.causation_id WHERE l.tenant_id = $1 AND l.subject = $2 AND l.payload->>'thresholdId' = $3), 0),
 coalesce((SELECT position FROM event_log_rows l WHERE tenant_id = $1 AND subject = $4 AND l.payload->'admitted'->>'used' = $5), 0),
 coalesce((SELECT removed FROM thresholds WHERE id = $6), 0)`, a.id, events.ThresholdCrossed, fmt.Sprint(threshold["id"]), events.UsageAdmitted, fmt.Sprint(value), threshold["id"]).Scan(&crossed, &expected, &removed))
		if value == 121 {
			expected = 0
		}
		if at.Number > expected || removed > 0 && removed < expected {
			expected = 0
		}
		if crossed != expected {
			t.Errorf("the threshold %d, defined at %s and removed at %d, is crossed by %d instead of %d", value, at, removed, crossed, expected)
		}
	}
}
