package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// rebuild is a rebuild as the API returns it.
type rebuild struct {
	ID, State, Failure string
	Generation         int
	Progress           struct{ EventsDone, EventsTotal int64 }
}

func startRebuild(w *deployment, at *instance, projection string) (r rebuild) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPost, at, "/api/v1/projections/"+projection+"/rebuilds", map[string]any{"reason": "e2e", "workers": 2}, &r,
		http.StatusAccepted)
	return r
}

func rebuildOf(w *deployment, at *instance, id string) (r rebuild) {
	w.t.Helper()
	w.ask(w.operator, http.MethodGet, at, "/api/v1/rebuilds/"+id, nil, &r, http.StatusOK)
	return r
}

func awaitReady(w *deployment, at *instance, id string) {
	w.t.Helper()
	within(w.t, "the rebuild is ready", func(context.Context) (bool, string) {
		r := rebuildOf(w, at, id)
		return r.State == "READY", fmt.Sprintf("%+v", r)
	})
}

// projections are those that can be rebuilt.
func projections() []string {
	return []string{"usage_aggregates", "dead_letter_events", "entitlement_reads", "usage_series", "usage_refusals"}
}

// rebuildAll rebuilds every projection, and checks that the rebuilt generation does not differ from the live one.
func rebuildAll(w *deployment, at *instance) {
	w.t.Helper()
	for _, projection := range projections() {
		r := startRebuild(w, at, projection)
		awaitReady(w, at, r.ID)
		var diff struct{ Data []any }
		if w.ask(w.operator, http.MethodGet, at, "/api/v1/rebuilds/"+r.ID+"/diff", nil, &diff, http.StatusOK); len(diff.Data) != 0 {
			w.t.Errorf("%s differs: %v", projection, diff.Data)
		}
		w.ask(w.operator, http.MethodPost, at, "/api/v1/rebuilds/"+r.ID+"/abandon", object{"reason": "compared"}, nil, http.StatusAccepted)
	}
}

// checkSameUsage checks in one snapshot that two generations have equal positions and the same
// figures, byte for byte.
func checkSameUsage(w *deployment, a, b int) {
	w.t.Helper()
	const dump = `coalesce((SELECT string_agg(row::text, E'\n' ORDER BY tenant_id, feature, period_key, subscription_id) FROM (
		SELECT tenant_id, feature, period_key, subscription_id, amount, event_count, applied_count, period_start, period_end, last_event_at
		FROM usage_aggregates WHERE generation = $%d) row), '')`
	var one, other string
	var apart int
	err := w.sql.QueryRow(w.t.Context(), "SELECT "+fmt.Sprintf(dump, a)+", "+fmt.Sprintf(dump, b)+`,
		(SELECT count(*) FROM consumer_checkpoints a JOIN consumer_checkpoints b USING (consumer, partition)
		 WHERE a.consumer = 'meterplex-usage-aggregator' AND a.generation = $1 AND b.generation = $2
 AND (a.position <> b.position OR NOT b.joined))`, a, b).Scan(&one, &other, &apart)
	switch {
	case err != nil:
		w.t.Fatal(err)
	case apart > 0:
		w.t.Errorf("generations %d and %d have different positions in %d partitions", a, b, apart)
	case one != other || one == "":
		w.t.Errorf("generation %d has\n%s\nand generation %d\n%s", a, one, b, other)
	}
}

// P5: a rebuild needs the log alone: without a broker it reaches the position of the live
// generation, and its diff is empty.
func TestP5_RebuiltWithoutABroker(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, 1, busyTraffic(), func(int) string { return i.url() })
	l.awaitMore(500)
	l.stop()
	w.settle(i, tenants...)
	w.drain()
	i.stop()
	lone := w.serve("api,projector", "KAFKA_BROKERS=127.0.0.1:1")
	r := startRebuild(w, lone, "usage_aggregates")
	awaitReady(w, lone, r.ID)
	checkSameUsage(w, 1, r.Generation)
	w.ask(w.operator, http.MethodPost, lone, "/api/v1/rebuilds/"+r.ID+"/abandon", object{"reason": "compared"}, nil, http.StatusAccepted)
	rebuildAll(w, lone)
	lone.stop()
	i.start()
	w.finish()
}
