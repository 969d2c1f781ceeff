package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// correctedFeature is the feature whose usage is corrected.
const correctedFeature = "output_tokens"

// correctionsLoad records and corrects usage of a tenant of its own, one batch after the other. So the order of the log is known, and with
// it the figure, whatever fails and is sent again meanwhile.
type correctionsLoad struct {
	x       *torture
	tenant  *tenant
	open    []object         // the batch without an answer
	ids     []string         // of usage, in the order of sending
	amounts map[string]int64 // of recorded usage, as last corrected
	final   map[string]bool  // retracted
	made    int
	applied atomic.Int64 // corrections and retractions
}

func newCorrectionsLoad(x *torture) *correctionsLoad {
	return &correctionsLoad{x: x, amounts: map[string]int64{}, final: map[string]bool{}}
}

// createTenant creates the tenant, which the other loads leave alone.
func (k *correctionsLoad) createTenant(at *instance) *tenant {
	k.tenant = k.x.createTenants(at, 1)[0]
	k.x.mu.Lock()
	defer k.x.mu.Unlock()
	k.x.tenants = slices.DeleteFunc(k.x.tenants, func(t *tenant) bool { return t == k.tenant })
	return k.tenant
}

// requests sends the open batch, or a new one.
func (k *correctionsLoad) requests(ctx context.Context, rng *rand.Rand) {
	if len(k.open) == 0 {
		for range 1 + rng.IntN(8) {
			k.open = append(k.open, k.draw(rng))
		}
	}
	k.settle(ctx)
}

// draw draws usage, or a correction or retraction of usage sent before. It is never a correction of retracted usage: a refusal that
// depends on whether the validator was faster would not be known.
func (k *correctionsLoad) draw(rng *rand.Rand) object {
	k.made++
	e := object{"eventId": fmt.Sprint("corrected-", k.made), "feature": correctedFeature, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)}
	id := e["eventId"].(string)
	if len(k.ids) > 0 && rng.IntN(3) > 0 {
		if ref := k.ids[max(0, len(k.ids)-1-rng.IntN(10))]; !k.final[ref] {
			e["correctionRef"], e["type"], e["amount"] = ref, "correction", rng.Int64N(1000)
			if rng.IntN(5) == 0 {
				e["type"], k.final[ref] = "retraction", true
				delete(e, "amount")
			}
			return e
		}
	}
	k.ids = append(k.ids, id)
	e["amount"] = 1 + rng.Int64N(1000)
	return e
}

// settle sends the open batch until it has an answer.
func (k *correctionsLoad) settle(ctx context.Context) {
	if len(k.open) == 0 {
		return
	}
	var answer struct{ Events []verdict }
	status, body := k.x.attempt(ctx, k.tenant.key, http.MethodPost, "/api/v1/usage/events", object{"events": k.open}, &answer)
	if status == 0 {
		return
	}
	if len(answer.Events) != len(k.open) {
		k.x.t.Errorf("corrections: answered with %d %s", status, body)
		return
	}
	for i, v := range answer.Events {
		e := k.open[i]
		if v.Status != "accepted" && v.Status != "duplicate" {
			k.x.t.Errorf("corrections: %v is answered with %+v", e, v)
			continue
		}
		switch ref, _ := e["correctionRef"].(string); e["type"] {
		case "correction":
			k.amounts[ref] = e["amount"].(int64)
			k.applied.Add(1)
		case "retraction":
			delete(k.amounts, ref)
			k.applied.Add(1)
		default:
			k.amounts[e["eventId"].(string)] = e["amount"].(int64)
		}
	}
	k.open = nil
}

// check compares the figure with the model.
func (k *correctionsLoad) check() string {
	want, counted := int64(0), int64(0)
	for _, amount := range k.amounts {
		want, counted = want+amount, counted+1
	}
	var answer struct {
		Data []struct{ Amount, EventCount int64 }
	}
	status, body := k.x.attempt(k.x.t.Context(), k.tenant.key, http.MethodGet, "/api/v1/usage/aggregates?feature="+correctedFeature, nil, &answer)
	amount, count := int64(0), int64(0)
	for _, d := range answer.Data {
		amount, count = amount+d.Amount, count+d.EventCount
	}
	if status != http.StatusOK || amount != want || count != counted {
		_, letters := k.x.attempt(k.x.t.Context(), k.x.operator, http.MethodGet, "/api/v1/dead-letters?tenantId="+k.tenant.id, nil, nil)
		k.x.t.Errorf("corrected usage: %d in %d events, want %d in %d: %s; dead letters %s", amount, count, want, counted, body, letters)
	}
	return fmt.Sprintf("%d corrections and retractions of %d events: %d in %d events", k.applied.Load(), len(k.ids), amount, count)
}
