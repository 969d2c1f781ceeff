package bench

import (
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// Every answer is checked: a read that finds no events would be fast.
func TestP12_ReadsAtSizeAreMeasuredWithBothKeys(t *testing.T) {
	tier.AtSize(t)
	r := newRun(t, times{figure: LeastHistory, reads: 2})
	must.OK(t, r.readsAtSize(t.Context()))
	for id, names := range map[string][]string{
		"B13/explain": {"explanation, first page", "explanation, page at a random place"},
		"B13/as-of":   {"figure as of a position", "figure as of a time"},
		"P12/lists": {"usage events, first page", "usage events, page at a random place", "rejected usage events, first page",
			"rejected usage events, page at a random place"},
		"P12/event": {"receipt", "lineage", "stream of an event"},
	} {
		f := r.figure(t, id)
		measured, limits := map[string]bool{}, 0
		for _, x := range f.Reads {
			if x.Refused > 0 || x.Latency.Count != 2 {
				t.Errorf("%s: %+v %+v", id, x, x.Latency)
			}
			if x.IsLimit {
				limits++
			}
			measured[x.Name+" "+x.Key] = true
		}
		for _, name := range names {
			if !measured[name+" tenant"] || !measured[name+" operator"] {
				t.Errorf("%s: %s was not measured with both keys: %+v", id, name, f.Reads)
			}
		}
		if f.Value == 0 || f.Limit == 0 || limits == 0 || f.CPU.Events == 0 || len(f.Aims) == 0 {
			t.Errorf("%s: %+v", id, f)
		}
	}
}

// An aim of reads is for each read with each key, not for their mean, and a refused read misses it.
func TestP12_AimsOfReadsAreForEachRead(t *testing.T) {
	good := func() []Read {
		return []Read{
			{Name: "a", Key: tenantKey, Latency: &Latency{P50: 10, P99: 90, Count: 9}},
			{Name: "b", Key: tenantKey, Latency: &Latency{P50: 20, P99: 80, Count: 9}},
			{Name: "a", Key: operatorKey, IsLimit: true, Latency: &Latency{P50: 8, P99: 400, Count: 9}},
			{Name: "b", Key: operatorKey, IsLimit: true, Latency: &Latency{P50: 16, P99: 300, Count: 9}},
		}
	}
	for name, x := range map[string]struct {
		change      func(list []Read) []Read
		fast, alike bool
	}{
		"all in time":               {func(list []Read) []Read { return list }, true, true},
		"one is slow":               {func(list []Read) []Read { list[1].Latency.P99 = 101; return list }, false, true},
		"one is slower than others": {func(list []Read) []Read { list[0].Latency.P50 = 10.1; return list }, true, false},
		"one was refused once":      {func(list []Read) []Read { list[0].Refused = 1; return list }, false, false},
		"one was never answered":    {func(list []Read) []Read { list[1].Latency = &Latency{}; return list }, false, false},
		"none":                      {func([]Read) []Read { return nil }, false, false},
	} {
		explain, event := figureB13Explain(1000), figureP12Event(1000)
		explain.Reads, event.Reads = x.change(good()), x.change(good())
		explain.judge()
		event.judge()
		if explain.Aims[0].Met != x.fast || event.Aims[0].Met != x.alike {
			t.Errorf("%s: %+v %+v", name, explain.Aims, event.Aims)
		}
		explain.slowest()
		if refused := name == "one was refused once"; refused != (len(explain.Notes) == 1) {
			t.Errorf("%s: %+v", name, explain.Notes)
		}
		if name == "one is slow" && (explain.Value != 101 || explain.Limit != 400) {
			t.Errorf("%v, limit %v", explain.Value, explain.Limit)
		}
	}
}
