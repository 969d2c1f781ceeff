package http_test

import "testing"

// A saga that has not stored its pushes is awaited as an open push is.
func TestP8_AnOffboardingWaitsForPushesThatAreNotStored(t *testing.T) {
	w := newOffboardingWorld(t)
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	w.until("push", false)
	w.exec(`INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, created_at)
 VALUES (gen_random_uuid(), 'billing_push', $1, 'adjust/lifetime/1/9', 'plan', 'RUNNING', now() + interval '1 hour', now())`, w.a.id)
	for range 3 {
		w.same("the step", w.step(false), "push")
	}
	w.same("status", w.status(), "SUSPENDED")
	w.exec(`UPDATE sagas SET next_at = now() WHERE key = 'adjust/lifetime/1/9'`)
	w.until("", false)
	w.same("status", w.status(), "ARCHIVED")
}
