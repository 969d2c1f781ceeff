package http_test

import (
	"fmt"
	"strings"
	"testing"
)

// An eventId belongs to the request that recorded it: the same id by another route, of another reservation or with another overage
// is a conflict, which is recorded and changes no account. An item among several is like one alone.
func TestP4_AnEventIDOfAnotherRouteIsAConflict(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(201, holding(a.key, "r", 5, 86400))
	w.want(201, holding(a.key, "other", 5, 86400))
	at := now()
	routes := []struct {
		name, kind string // requests of a kind are the same
		request    func(id string) call
	}{
		{"ingest", "ingest", func(id string) call {
			return call{"POST", "/api/v1/usage/events", a.key, nil, batch(event(id, map[string]any{"amount": 5, "timestamp": at}))}
		}},
		{"consume", "consume", func(id string) call { return consuming(a.key, "api_calls", id, 5) }},
		{"consume together", "consume", func(id string) call {
			return call{"POST", "/api/v1/entitlements/consume", a.key, nil,
				fmt.Sprintf(
					`{"items":[{"feature":"storage","eventId":"more-%s","amount":5},{"feature":"api_calls","eventId":%q,"amount":5}]}`, id,
					id)}
		}},
		{"commit", "commit", func(id string) call { return committing(a.key, "r", id, 5) }},
		{"commit of another reservation", "another", func(id string) call { return committing(a.key, "other", id, 5) }},
		{"commit with overage", "overage", func(id string) call {
			return call{"POST", reservationsPath + "/r/commit", a.key, nil, map[string]any{"eventId": id, "amount": 5, "overage": "record"}}
		}},
	}
	conflicts := map[string]bool{} // by id and kind: each is recorded once
	for i, first := range routes[:4] {
		id := fmt.Sprint("id", i)
		if got := w.do(first.request(id)); got.status/100 != 2 {
			t.Fatalf("%s: %d %s", first.name, got.status, got.body)
		}
		before := w.accountOf(a)
		for _, second := range routes {
			got := w.do(second.request(id))
			if second.kind != first.kind {
				conflicts[id+second.kind] = true
			}
			switch {
			case second.kind == "ingest":
				if want := map[bool]string{true: `"duplicates":1`,
					false: `"conflicts":1`}[second.kind == first.kind]; !strings.Contains(string(got.body), want) {
					t.Errorf("%s, then %s: %s", first.name, second.name, got.body)
				}
			case second.kind != first.kind:
				w.refused(got, 409, "payload_conflict")
			case got.status != 200:
				t.Errorf("%s, then %s: %d %s", first.name, second.name, got.status, got.body)
			}
			w.same(first.name+", then "+second.name, w.accountOf(a), before)
		}
	}
	list := w.want(200, call{method: "GET", path: "/api/v1/usage/conflicts", key: a.key})["data"].([]any)
	w.same("recorded conflicts", len(list), len(conflicts))
}
