package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/test/observe"
)

// health is the address of /readyz and /metrics of the present process.
func (i *instance) health() string {
	if slices.ContainsFunc(i.env, func(s string) bool { return strings.HasPrefix(s, "METERPLEX_ADMIN_ADDR=") }) {
		return i.adminURL()
	}
	for _, line := range i.linesOfRun() {
		if strings.HasPrefix(line, "The service runs, without the role api") {
			_, at, _ := strings.Cut(line, " are at ")
			return at
		}
	}
	return i.url()
}

// linesOfRun returns the lines that the present process has logged.
func (i *instance) linesOfRun() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.run == nil {
		return nil
	}
	return slices.Clone(i.logs[i.run.firstLine:])
}

// The roles run in two instances: each serves its health, and each metric that rules and
// dashboards use exists on at least one of them.
func TestInstancesOfOneRoleExportAllMetrics(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	api := w.serve("api,projector")
	back := w.serve("relay,validator,aggregator,deadletter,commands")
	w.catalogue(api)
	x := w.createTenants(api, 1)[0]
	w.ingest(api, x, "accepted", events("e", 20, "api_calls")...)
	w.drain()
	for _, at := range []string{api.url(), back.health()} {
		for _, path := range []string{"/livez", "/readyz"} {
			if status, body, err := w.call(t.Context(), "", http.MethodGet, at+path, nil); err != nil || status != http.StatusOK {
				t.Errorf("GET %s%s: %d %v %s", at, path, status, err, body)
			}
		}
	}
	within(t, "one of the two instances has every metric", func(ctx context.Context) (bool, string) {
		missing := missingMetrics(ctx, w, api.url(), back.health())
		return len(missing) == 0, fmt.Sprint(missing)
	})
	// An instance that does not relay reports the backlog, too.
	back.stop()
	w.ingest(api, x, "accepted", events("later", 5, "api_calls")...)
	within(t, "the instance with the role api reports the backlog", func(context.Context) (bool, string) {
		n := w.metric(api, "meterplex_outbox_unpublished_count")
		return n >= 5, fmt.Sprint(n)
	})
	back.start()
	w.finish()
}

// missingMetrics returns the series of rules that one of the addresses lacks, and the listed values that all of them lack.
func missingMetrics(ctx context.Context, w *deployment, addresses ...string) (missing []string) {
	var found strings.Builder
	for _, at := range addresses {
		_, body, _ := w.call(ctx, "", http.MethodGet, at+"/metrics", nil)
		found.Write(body)
		missing = append(missing, observe.Missing(string(body))...)
	}
	for _, series := range []string{
		`events_ingested_total{tenant_class="small",verdict="accepted"} `, `ingest_duration_seconds_count `,
		`events_published_total{topic="usage.raw"} `,
		`events_consumed_total{consumer="meterplex-usage-aggregator",result="ok",topic="usage.validated"} `,
		`events_dlq_total{stage="VALIDATION",topic="usage.raw"} 0`,
		`event_processing_duration_seconds_count{consumer="meterplex-usage-validator"} `,
		`end_to_end_seconds_count{consumer="meterplex-usage-aggregator"} `, `outbox_unpublished_count 0`,
		`outbox_oldest_unpublished_seconds 0`,
		`inbox_dedup_skips_total{`, `payload_conflicts_total 0`, `consumer_lag{partition="17",topic="usage.raw"} 0`,
		`consumer_lag{partition="0",topic="meterplex.commands"} 0`,
		`projection_lag_events{projection="usage_aggregates"} 0`, `projection_lag_seconds{projection="usage_aggregates"} 0`, `log_head `,
		`identity_holds 1`, `database_monitored 0`, `wal_bytes NaN`,
	} {
		if !strings.Contains(found.String(), "\nmeterplex_"+series) {
			missing = append(missing, series)
		}
	}
	return missing
}
