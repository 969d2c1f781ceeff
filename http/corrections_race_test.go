package http_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/validate"
)

// correctors are 16 clients of two instances that correct one event at once.
type correctors struct {
	*testService
	other *testService
	of    *account
	rng   *rand.Rand
	sent  map[string]int64 // new amounts by the id of the correction; a retraction has -1
}

const correctorClients, correctionsOfEach = 16, 3

// P8: 16 clients correct one event at once through two instances, while verdicts are taken, of an open and of a closed period. Each correction has
// one delta, in the order of the log, and the sum is the last one. Behind a retraction there is none.
func TestP8_SixteenClientsCorrectOneEvent(t *testing.T) {
	w := newTestService(t)
	other := w.secondInstance()
	w.catalogue()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for n, closed := range []bool{false, true} {
		r := &correctors{w, other, w.newAccount(fmt.Sprint(n)), rand.New(rand.NewPCG(seed, uint64(n))), map[string]int64{}}
		path, of := "", event("u", map[string]any{"amount": 100})
		if closed {
			of = old("u", 100)
		}
		w.accept(r.of, of)
		if w.fold(); closed {
			path = w.closed(r.of)
		}
		r.correct(false)
		last := r.checkDeltas(100, len(r.sent), path)
		r.correct(true)
		r.checkDeltas(last, 0, path)
		if closed {
			w.same("the line", w.lines(path, "frozen", "net", "netEventCount", "pending", "unreconciled"), []string{"100 0 0 -100 0"})
		} else {
			w.same("the figure", w.callsFigure(r.of), "0 0")
		}
	}
}

// correct lets all clients send corrections at once, each to both instances. With retracting, some of them retract the event instead.
func (r *correctors) correct(retracting bool) {
	r.Helper()
	batches := make([][]map[string]any, correctorClients)
	r.sent = map[string]int64{}
	for c := range batches {
		for n := range correctionsOfEach {
			id, amount := fmt.Sprintf("%v-%d-%d", retracting, c, n), r.rng.Int64N(1000)
			one := correction(id, "u", int(amount))
			if retracting && c%4 == 1 && n == 1 {
				one, amount = retraction(id, "u"), -1
			}
			batches[c], r.sent[id] = append(batches[c], one), amount
		}
	}
	var all sync.WaitGroup
	var open atomic.Int32
	for c, list := range batches {
		open.Add(1)
		all.Go(func() {
			defer open.Add(-1)
			to := []*testService{r.testService, r.other}
			if c%2 == 1 {
				slices.Reverse(to)
			}
			for _, one := range list {
				for _, at := range to {
					if got := at.do(call{"POST", "/api/v1/usage/events", r.of.writer, nil, batch(one)}); got.status != 202 {
						r.Errorf("client %d: %d %s", c, got.status, got.body)
					}
				}
			}
		})
	}
	for n := 0; open.Load() > 0; n++ {
		[]*testService{r.testService, r.other}[n%2].feed(validate.Consumer(newID, new(validate.Histories)))
	}
	all.Wait()
	r.fold()
}

// checkDeltas checks the verdicts on the corrections that were sent last, of an event with an amount: want of them, or those up to the first
// retraction. It returns the last amount.
func (r *correctors) checkDeltas(amount int64, want int, path string) int64 {
	r.Helper()
	recorded, verdicts := r.changesOfLog()
	var expected, got, adjusted []string
	retracted := false
	for _, id := range recorded {
		after, count := r.sent[id], 0
		if retracted {
			continue
		}
		if retracted = after < 0; retracted {
			after, count = 0, -1
		}
		expected = append(expected, fmt.Sprintf("%s %d to %d by %d %d", id, amount, after, after-amount, count))
		adjusted = append(adjusted, fmt.Sprintf("%s %d %d", id, after-amount, count))
		amount = after
	}
	for _, v := range verdicts {
		got = append(got, fmt.Sprintf("%s %d to %d by %d %d", v.EventID, v.Before, v.After, v.Amount, v.Count))
	}
	if !slices.Equal(got, expected) || want > 0 && len(got) != want || want == 0 && !retracted {
		r.Errorf("the verdicts on %d corrections, retracted %v, are\n%s\ninstead of\n%s", len(recorded), retracted, strings.Join(got, "\n"), strings.Join(expected, "\n"))
	}
	if path == "" {
		r.same("the figure", r.callsFigure(r.of), fmt.Sprint(amount, map[bool]string{true: " 0", false: " 1"}[retracted]))
		return amount
	}
	r.adjustedBy(adjusted)
	return amount
}

// adjustedBy checks the adjustments of the corrections that were sent last.
func (r *correctors) adjustedBy(want []string) {
	r.Helper()
	var got []string
	for _, page := range r.pages(bootstrap, "/api/v1/adjustments?limit=100&tenantId="+r.of.id) {
		var a struct {
			SourceEventID      string
			Amount, EventCount int64
		}
		r.must(json.Unmarshal([]byte(page), &a))
		if _, sent := r.sent[a.SourceEventID]; sent {
			got = append(got, fmt.Sprintf("%s %d %d", a.SourceEventID, a.Amount, a.EventCount))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	r.same("the adjustments", strings.Join(got, ", "), strings.Join(want, ", "))
}

// changesOfLog reads the ids of the corrections that were sent last, in the order in which they were recorded, and the verdicts on them in theirs.
func (r *correctors) changesOfLog() (recorded []string, verdicts []events.Validated) {
	r.Helper()
	tenant := uuid.MustParse(r.of.id)
	page, err := r.log.Read(r.Context(), events.PartitionOf(tenant), 0, 1<<62, 1<<20)
	r.must(err)
	for _, e := range page {
		var v events.Validated
		if e.TenantID != tenant || json.Unmarshal(e.Payload, &v) != nil {
			continue
		}
		if _, sent := r.sent[v.EventID]; !sent {
			continue
		}
		switch e.Subject {
		case events.UsageCorrected, events.UsageRetracted:
			recorded = append(recorded, v.EventID)
		case events.UsageValidated:
			verdicts = append(verdicts, v)
		}
	}
	if len(recorded) == 0 || len(recorded) > correctorClients*correctionsOfEach {
		r.Errorf("%d corrections are recorded", len(recorded))
	}
	return recorded, verdicts
}
