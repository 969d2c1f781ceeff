package observe

import (
	"encoding/json"
	nethttp "net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/infra/prometheus"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/state"
)

// scrapes returns the metrics of a new process of each kind of instance, before any event: the metrics of all other roles are created by
// New.
func scrapes(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, handler := range map[string]func(*http.Server) (nethttp.Handler, error){"with the role api": (*http.Server).Handler,
		"without the role api": (*http.Server).HealthHandler} {
		registry := prom.NewRegistry()
		prometheus.New(registry, func() *state.State { return new(state.State) }, []string{"period_close"})
		h, err := handler(&http.Server{Registerer: registry, Metrics: prometheus.NewScrapes(registry, time.Now)})
		must.OK(t, err)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != nethttp.StatusOK {
			t.Fatalf("GET /metrics: %d %s", w.Code, w.Body)
		}
		all[name] = w.Body.String()
	}
	return all
}

// Every series that a rule names exists from the start of a process, whatever its roles.
func TestEveryRuleNamesExportedSeries(t *testing.T) {
	for name, scrape := range scrapes(t) {
		for _, series := range Missing(scrape) {
			t.Errorf("an instance %s does not export %s", name, series)
		}
		if exported(scrape, `meterplex_log_hole`) || exported(scrape, `meterplex_saga_open{state="DRIFTS"}`) ||
			exported(scrape, `meterplex_saga_open{state!~"RUNNING|PARTIAL|DRIFT"}`) {
			t.Error("series that do not exist are found")
		}
	}
}

// A dashboard names exported metrics and records, and no tenant and no data source; its panels have units and thresholds.
func TestDashboards(t *testing.T) {
	metrics, records := map[string]bool{}, map[string]bool{}
	for _, scrape := range scrapes(t) {
		for line := range strings.Lines(scrape) {
			if kind, found := strings.CutPrefix(line, "# TYPE "); found {
				name, _, _ := strings.Cut(kind, " ")
				metrics[name], metrics[name+"_bucket"] = true, strings.Contains(kind, "histogram")
			}
		}
	}
	for _, r := range Records() {
		records[r.Name] = true
	}
	for name, text := range dashboards() {
		if strings.Contains(text, "tenant_id") || !strings.Contains(text, `"${datasource}"`) ||
			regexp.MustCompile(`"uid": "[^$m]`).MatchString(text) {
			t.Errorf("%s names a tenant or a data source", name)
		}
		if !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON", name)
		}
	}
	queue := map[string]bool{"meterplex_ingest_queue_wait_seconds": true} // of a log, registered when it is opened
	exempt := map[string]bool{"meterplex_http_requests_total": true}      // its series begin with the first answer
	for _, d := range Dashboards() {
		for _, p := range d.Panels {
			if p.Title == "" || p.Unit == "" || p.Warn == 0 || p.Alert == 0 || p.Falling != (p.Warn > p.Alert) {
				t.Errorf("%s: %+v", d.Name, p)
			}
			for _, q := range p.Exprs {
				found := regexp.MustCompile(`\b(?:meterplex|node)[_:][a-z0-9_:]+`).FindAllString(q.Expr, -1)
				if len(found) == 0 || strings.Contains(q.Expr, "tenant_id") {
					t.Errorf("%s: %s", d.Name, q.Expr)
				}
				for _, metric := range found {
					if !metrics[metric] && !records[metric] && !queue[metric] && !exempt[metric] && !strings.HasPrefix(metric, "node_") {
						t.Errorf("%s: %s is not exported", d.Name, metric)
					}
				}
				for _, s := range Selectors(q.Expr) {
					if strings.HasPrefix(s, "meterplex_") && !strings.Contains(s, of) {
						t.Errorf("%s: %s is of all installations", d.Name, s)
					}
				}
			}
		}
	}
	if len(Dashboards()) != 5 {
		t.Error("the dashboards are overview, ingest, pipe, projections and database")
	}
}
