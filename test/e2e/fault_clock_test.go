package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// serveWithClock starts an instance with a wrong clock.
func serveWithClock(w *deployment, roles string, by time.Duration) *instance {
	w.t.Helper()
	i := w.prepare(roles, "METERPLEX_FAULT_CLOCK="+by.String())
	i.build = faulty
	i.start()
	return i
}

// shifted shifts the timestamps of events.
func shifted(batch []event, by time.Duration) []event {
	for n := range batch {
		batch[n].Timestamp = batch[n].Timestamp.Add(by)
	}
	return batch
}

// One instance's clock is two days ahead, another's two days behind, a third's six minutes
// behind. All accept usage, beside one with the right clock; all but the third, an api only,
// relay and fold. Each instance accepts events by its own clock; an accepted event counts once,
// in the order of the log, and a partition's recordedAt never decreases.
func TestP10_WrongClocks(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	right := w.serve("")
	w.catalogue(right)
	tenants := w.createTenants(right, 2)
	const days = 49 * time.Hour
	ahead, behind, late := serveWithClock(w, "", days), serveWithClock(w, "", -days), serveWithClock(w, "api", -6*time.Minute)
	for _, i := range []*instance{ahead, behind, late} {
		awaitKeys(w, i, tenants)
	}
	x := tenants[0]
	// An instance rejects events of the future and events that are too old by its own clock.
	w.ingest(late, x, "rejected", events("ahead-of-the-late-one", 2, "api_calls")...)
	w.ingest(behind, x, "rejected", events("ahead-of-the-one-behind", 2, "api_calls")...)
	w.ingest(ahead, x, "accepted", shifted(events("of-tomorrow", 2, "api_calls"), 24*time.Hour)...)
	w.ingest(right, x, "rejected", shifted(events("of-the-day-after", 2, "api_calls"), 24*time.Hour)...)
	w.ingest(ahead, x, "rejected", shifted(events("too-old-for-the-one-ahead", 2, "api_calls"), -120*time.Hour)...)
	l := w.startLoad(tenants, 2, lightTraffic(), func(n int) string { return []string{right.url(), ahead.url()}[n%2] })
	l.awaitMore(200)
	within(t, "all three relays have partitions", func(ctx context.Context) (bool, string) {
		n := w.count(`SELECT count(DISTINCT owner) FROM relay_cursors WHERE lease_until > now()`)
		return n == 3, fmt.Sprint(n)
	})
	l.awaitMore(200)
	l.stop()
	w.settle(right, tenants...)
	if n := w.count(`SELECT count(*) FROM event_log_rows WHERE subject = 1 AND recorded_at > now() + interval '1 day'`); n == 0 {
		t.Error("no event was recorded with the clock that is ahead")
	}
	if n := w.count(`SELECT count(*) FROM (SELECT recorded_at < lag(recorded_at) OVER (PARTITION BY partition ORDER BY position) back
 FROM event_log_rows) l WHERE back`); n != 0 {
		t.Errorf("recordedAt decreases %d times", n)
	}
	w.finish()
}
