package http_test

import (
	"context"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/projections/overview"
	"github.com/meterplex/meterplex/projections/state"
)

// watchedService is a test service whose overview is sampled each second, until the returned function is called. It has read a state, if
// one is given.
func watchedService(t *testing.T, read ...*state.State) (*testService, *overview.Live, func()) {
	var live *overview.Live
	w := newTestService(t, func(s *http.Server) {
		if live = s.Live; len(read) > 0 {
			live.State = func() *state.State { return read[0] }
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- live.Run(ctx) }()
	ended := false
	end := func() {
		if stop(); !ended {
			ended = true
			w.must(<-done)
		}
	}
	t.Cleanup(end)
	return w, live, end
}

// overviews opens a stream of the overview.
func (w *testService) overviews(key string) (next func() (overview.Overview, bool), end func()) {
	w.Helper()
	ctx, stop := context.WithCancel(w.Context())
	l := w.stream(ctx, "/api/v1/system/overview", map[string]string{"Authorization": "Bearer " + key, "Accept": "text/event-stream"})
	return func() (o overview.Overview, ok bool) {
		data, ok := l.next()
		if ok {
			w.must(json.Unmarshal([]byte(data), &o))
		}
		return o, ok
	}, func() { stop(); l.body.Close() }
}

func TestTheOverviewCountsVerdictsOfTheInstance(t *testing.T) {
	w, _, _ := watchedService(t)
	w.catalogue()
	a := w.newAccount("A")
	next, end := w.overviews(bootstrap)
	defer end()
	first, ok := next()
	if !ok || first.History == nil || len(first.History.Instance.Accepted) == 0 || first.Instance.ID != "test" {
		t.Fatalf("%v: the first event is %+v", ok, first)
	}
	if held := w.metric(`meterplex_http_request_bytes{kind="other"}`); held != hostileCost {
		t.Errorf("a stream holds %d bytes", held)
	}
	again := event("a", nil)
	w.ingest(a, batch(again, event("b", nil), again, event("b", map[string]any{"amount": 9}),
		event("c", map[string]any{"feature": "unknown"})))
	var sum overview.Rates
	for sum.Accepted == 0 {
		o, ok := next()
		if !ok || o.History != nil {
			t.Fatalf("%v: a later event is %+v", ok, o)
		}
		sum.Accepted += o.Instance.PerSecond.Accepted
		sum.Duplicates += o.Instance.PerSecond.Duplicates
		sum.Conflicts += o.Instance.PerSecond.Conflicts
		sum.Rejected += o.Instance.PerSecond.Rejected
	}
	// One interval has all verdicts of the batch, and each rate is a count by the length of the interval.
	if one := sum.Accepted / 2; math.Abs(sum.Duplicates-one) > 0.1 || math.Abs(sum.Conflicts-one) > 0.1 ||
		math.Abs(sum.Rejected-one) > 0.1 {
		t.Errorf("%+v, want half as many of each other verdict as are accepted", sum)
	}
	got := w.want(200, call{method: "GET", path: "/api/v1/system/overview", key: bootstrap})
	if got["instance"].(map[string]any)["id"] != "test" || got["history"] != nil || got["installation"].(map[string]any)["readAt"] != nil {
		t.Errorf("as JSON: %v", got)
	}
	if got := w.want(200, call{method: "GET", path: "/api/v1/system/overview?history=true", key: bootstrap}); got["history"] == nil {
		t.Errorf("without history: %v", got)
	}
}

// P9: a stream of the overview ends within a second after its key is revoked.
func TestP9_AStreamOfTheOverviewEndsWithItsKey(t *testing.T) {
	w, live, _ := watchedService(t)
	key, id := w.key("", nil, "audit")
	next, end := w.overviews(key)
	defer end()
	if _, ok := next(); !ok || !live.Viewed() {
		t.Fatal("the stream ended before its key")
	}
	w.want(204, call{method: "DELETE", path: "/api/v1/operator-keys/" + id, key: bootstrap})
	revoked := time.Now()
	late := 0
	for o, ok := next(); ok; o, ok = next() {
		if o.At.Sub(revoked) > time.Second {
			late++
		}
		if late > 60 {
			t.Fatal("the stream goes on after its key was revoked")
		}
	}
	if late > 0 && !testing.Short() {
		t.Errorf("%d events were sampled and sent more than a second after the key was revoked", late)
	}
	for live.Viewed() {
		time.Sleep(time.Millisecond)
	}
}

func TestTheOverviewRefusesTheViewerAboveTheLimit(t *testing.T) {
	w, live, _ := watchedService(t)
	var all []*overview.Viewer
	for range overview.MaxViewers {
		v, err := live.Watch()
		w.must(err)
		all = append(all, v)
	}
	a := w.do(call{method: "GET", path: "/api/v1/system/overview", key: bootstrap,
		header: map[string]string{"Accept": "text/event-stream"}})
	if w.refused(a, 503, "overloaded"); a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	w.want(200, call{method: "GET", path: "/api/v1/system/overview", key: bootstrap}) // one sample for all
	for _, v := range all {
		v.Close()
	}
	_, end := w.overviews(bootstrap)
	end()
}
