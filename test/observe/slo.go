package observe

import (
	"fmt"
	"slices"
	"strings"
)

// SLO is an objective over 30 days.
type SLO struct {
	Name      string
	Title     string
	Objective string // share of good requests
	Budget    string // 1 less the objective
	// Errors and Requests are rates or increases of counters; WINDOW stands for the window.
	Errors, Requests string
}

// SLOs lists the objectives. Each bound is a bucket. Prometheus 3 writes the bound 2 as 2.0.
func SLOs() []SLO {
	const ingest, check = `meterplex_objective_requests_total{objective="ingest"`, `meterplex_objective_requests_total{objective="check"`
	return []SLO{
		{Name: "ingest_answered", Title: "Ingest answered without 5xx", Objective: "99.95 %", Budget: "0.0005",
			Errors: ingest + `,result="error"}`, Requests: ingest + `}`},
		{Name: "ingest_latency", Title: "Ingest answered within 50 ms", Objective: "99 %", Budget: "0.01",
			Errors: `meterplex_ingest_duration_seconds_bucket{le="0.05"}`, Requests: `meterplex_ingest_duration_seconds_count`},
		{Name: "readable", Title: "Usage readable within 2 s", Objective: "99.9 %", Budget: "0.001",
			Errors:   `meterplex_end_to_end_seconds_bucket{consumer="meterplex-usage-aggregator",le=~"2|2.0"}`,
			Requests: `meterplex_end_to_end_seconds_count{consumer="meterplex-usage-aggregator"}`},
		{Name: "check_answered", Title: "Checks answered without 5xx", Objective: "99.99 %", Budget: "0.0001",
			Errors: check + `,result="error"}`, Requests: check + `}`},
		{Name: "check_latency", Title: "Checks answered within 4 ms", Objective: "99.9 %", Budget: "0.001",
			Errors: `meterplex_check_duration_seconds_bucket{le="0.004"}`, Requests: `meterplex_check_duration_seconds_count`},
	}
}

// within reports whether Errors counts the good requests.
func (s *SLO) within() bool { return strings.Contains(s.Errors, "_bucket") }

// burn is the share of errors in a window, as a multiple of the budget.
func (s *SLO) burn(window string) string {
	share := fmt.Sprintf(`sum by (job) (rate(%s[%s])) / sum by (job) (rate(%s[%s]))`, s.Errors, window, s.Requests, window)
	if s.within() {
		share = "1 - " + share
	}
	return fmt.Sprintf("(%s) / %s", share, s.Budget)
}

// Record is a recording rule.
type Record struct{ Name, SLO, Expr string }

// burnRate is an alert on the SLOs.
type burnRate struct {
	Rate, Long, Short string
	Severity          Severity
}

func burnRates() []burnRate {
	return []burnRate{{"14.4", "1h", "5m", Page}, {"6", "6h", "30m", Page}, {"3", "1d", "2h", Ticket}, {"1", "3d", "6h", Ticket}}
}

// Records lists the recording rules: burn rates of each window, and the requests of the long ones.
func Records() (all []Record) {
	var windows []string
	for _, b := range burnRates() {
		for _, w := range []string{b.Short, b.Long} {
			if !slices.Contains(windows, w) {
				windows = append(windows, w)
			}
		}
	}
	for _, s := range SLOs() {
		for _, w := range append(windows, "30d") {
			all = append(all, Record{"meterplex:slo_burn:rate" + w, s.Name, s.burn(w)})
		}
		for _, b := range burnRates() {
			all = append(all, Record{"meterplex:slo_requests:increase" + b.Long, s.Name, fmt.Sprintf(`sum by (job) (increase(%s[%s]))`,
				s.Requests, b.Long)})
		}
	}
	return all
}

func recorded() (exprs []string) {
	for _, r := range Records() {
		exprs = append(exprs, r.Expr)
	}
	return exprs
}

// guard is the number of requests in the long window below which no alert on an SLO fires.
const guard = "1000"

func slos() Group {
	g := Group{Name: "slo", Title: "SLOs"}
	for _, b := range burnRates() {
		g.Alerts = append(g.Alerts, Alert{
			Name: "MeterplexSLOBurn" + strings.ReplaceAll(b.Rate, ".", "_"), Severity: b.Severity, Owner: Service, Runbook: "slo.md",
			Symptom: fmt.Sprintf("The error budget of an SLO is spent %s times too fast, for %s and still in the last %s.", b.Rate, b.Long,
				b.Short),
			Expr: fmt.Sprintf(
				`meterplex:slo_burn:rate%[2]s > %[1]s and meterplex:slo_burn:rate%[3]s > %[1]s and meterplex:slo_requests:increase%[2]s >= %[4]s`,
				b.Rate, b.Long, b.Short, guard),
		})
	}
	return g
}
