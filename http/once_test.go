package http_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// TestAnIdempotencyKeyForTwoTenantsAtOnce sends two concurrent requests under one key,
// for tenants of different partitions, which share no lock. One takes effect; the other
// is refused because the key was used.
func TestAnIdempotencyKeyForTwoTenantsAtOnce(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccountIn("B", func(p int16) bool { return p != a.partition() })
	tenants := []string{a.id, b.id}
	for round := range tier.Histories(t, 10, 40) {
		var both sync.WaitGroup
		answers := make([]answer, len(tenants))
		for i, tenant := range tenants {
			both.Go(func() {
				answers[i] = w.do(call{"POST", "/api/v1/tenants/" + tenant + "/api-keys", bootstrap,
					map[string]string{"Idempotency-Key": fmt.Sprint("both ", round)}, `{"name":"k","scopes":["usage:read"]}`})
			})
		}
		both.Wait()
		slices.SortFunc(answers, func(a, b answer) int { return a.status - b.status })
		if answers[0].status != 201 {
			t.Fatalf("round %d: %d %s", round, answers[0].status, answers[0].body)
		}
		w.refused(answers[1], 422, "idempotency_key_reused")
	}
}

// A repeat that arrives after its answer was dropped is refused, whatever the first request created: nothing is
// created twice.
func TestARepeatWithoutAKeptAnswerCreatesNothing(t *testing.T) {
	w, a := newServiceWithAccount(t)
	tenant := "/api/v1/tenants/" + a.id
	calls := map[string]call{
		"tenant":       {"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"T","class":"small"}`},
		"key":          {"POST", tenant + "/api-keys", bootstrap, nil, `{"name":"K","scopes":["usage:read"]}`},
		"rotate":       {"POST", tenant + "/api-keys/" + a.keyID + "/rotate", bootstrap, nil, `{"overlapSeconds":3600}`},
		"operator key": {"POST", "/api/v1/operator-keys", bootstrap, nil, `{"name":"O","scopes":["audit"]}`},
		"replay":       {"POST", "/api/v1/replays", bootstrap, nil, `{"topic":"usage.raw","fromTime":"2026-05-01T00:00:00Z","reason":"x"}`},
		"bulk":         {"POST", "/api/v1/dead-letters/bulk", bootstrap, nil, `{"action":"retry","filter":{"stage":"VALIDATION"}}`},
	}
	for name, c := range calls {
		c.header = map[string]string{"Idempotency-Key": "once " + name}
		if first := w.do(c); first.status/100 != 2 {
			t.Fatalf("%s: %d %s", name, first.status, first.body)
		}
		calls[name] = c
	}
	w.asOwner(`UPDATE idempotency_answers SET created_at = now() - interval '31 days'`)
	var expired int
	w.must(w.pool.QueryRow(t.Context(), `SELECT expire_answers('30 days', 100)`).Scan(&expired))
	stored := w.stored()
	for name, c := range calls {
		w.refused(w.do(c), 409, "idempotency_answer_expired")
		c.body = strings.Replace(c.body.(string), "{", `{"unknown":1,`, 1)
		if got := w.do(c); got.status/100 == 2 {
			t.Errorf("%s: another request under the key is answered %d %s", name, got.status, got.body)
		}
		if w.stored() != stored {
			t.Errorf("%s: a repeat stored something", name)
		}
	}
	if expired < len(calls) {
		t.Errorf("%d answers expired", expired)
	}
	c := calls["tenant"]
	c.header = map[string]string{"Idempotency-Key": "another"}
	w.want(201, c)
}
