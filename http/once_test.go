package http_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// TestAnIdempotencyKeyForTwoTenantsAtOnce sends two concurrent requests under one key,
// for tenants of different partitions, which share no lock. One takes effect; the other
// is refused because the key was used.
func TestAnIdempotencyKeyForTwoTenantsAtOnce(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	var tenants []string
	for len(tenants) < 2 {
		p := w.newAccount("A")
		if len(tenants) == 0 || events.PartitionOf(uuid.MustParse(p.id)) != events.PartitionOf(uuid.MustParse(tenants[0])) {
			tenants = append(tenants, p.id)
		}
	}
	for round := range 40 {
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
