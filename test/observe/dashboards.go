package observe

import (
	"encoding/json"
	"fmt"
)

// Panel is a graph of a dashboard.
type Panel struct {
	Title   string
	Unit    string // of Grafana
	Exprs   []Query
	Warn    float64 // thresholds
	Alert   float64
	Falling bool // the thresholds are lower bounds
}

// Query is an expression of a panel and the legend of its series.
type Query struct{ Expr, Legend string }

// Dashboard is a dashboard of Grafana.
type Dashboard struct {
	Name, Title string
	Panels      []Panel
}

// one returns a panel with one expression.
func one(title, unit, expr, legend string, warn, alert float64) Panel {
	return Panel{Title: title, Unit: unit, Exprs: []Query{{expr, legend}}, Warn: warn, Alert: alert}
}

// of restricts the selectors of a metric to the job that the viewer chose.
const of = `job=~"$job"`

// Dashboards lists the dashboards.
func Dashboards() []Dashboard {
	return []Dashboard{overview(), ingestBoard(), pipeBoard(), projectionBoard(), databaseBoard()}
}

func overview() Dashboard {
	d := Dashboard{Name: "overview", Title: "Meterplex: overview"}
	for _, s := range SLOs() {
		d.Panels = append(d.Panels, Panel{Title: s.Title + " (" + s.Objective + "): budget spent in 30 days, and burn rate", Unit: "short",
			Warn: 1, Alert: 6,
			Exprs: []Query{{fmt.Sprintf(`meterplex:slo_burn:rate30d{%s,slo="%s"}`, of, s.Name), "30 days"},
				{fmt.Sprintf(`meterplex:slo_burn:rate1h{%s,slo="%s"}`, of, s.Name), "1 hour"}}})
	}
	holds := one("The balance check holds", "bool", `min by (job) (meterplex_identity_holds{`+of+`})`, "{{job}}", 0.5, 0.1)
	holds.Falling = true
	return Dashboard{d.Name, d.Title, append(d.Panels, holds,
		one("Events recorded", "cps", `sum by (verdict) (rate(meterplex_events_ingested_total{`+of+`}[5m]))`, "{{verdict}}", 20000, 40000),
		one("Oldest unpublished event", "s", `max by (job) (meterplex_outbox_oldest_unpublished_seconds{`+of+`})`, "{{job}}", 10, 60),
		one("Lag of projections", "s", `max by (projection) (meterplex_projection_lag_seconds{`+of+`})`, "{{projection}}", 1, 5),
		one("Dead letters that wait", "short", `max by (stage) (meterplex_dead_letters{`+of+`,status="FAILED"})`, "{{stage}}", 1, 10))}
}

func ingestBoard() Dashboard {
	return Dashboard{"ingest", "Meterplex: ingest", []Panel{
		one("Results of events", "cps", `sum by (verdict, tenant_class) (rate(meterplex_events_ingested_total{`+of+`}[5m]))`,
			"{{verdict}} {{tenant_class}}", 20000, 40000),
		{Title: "Latency of ingest", Unit: "s", Warn: 0.05, Alert: 0.5, Exprs: []Query{
			{`histogram_quantile(0.5, sum by (le) (rate(meterplex_ingest_duration_seconds_bucket{` + of + `}[5m])))`, "p50"},
			{`histogram_quantile(0.99, sum by (le) (rate(meterplex_ingest_duration_seconds_bucket{` + of + `}[5m])))`, "p99"}}},
		{Title: "Latency of checks", Unit: "s", Warn: 0.004, Alert: 0.05, Exprs: []Query{
			{`histogram_quantile(0.5, sum by (le) (rate(meterplex_check_duration_seconds_bucket{` + of + `}[5m])))`, "p50"},
			{`histogram_quantile(0.999, sum by (le) (rate(meterplex_check_duration_seconds_bucket{` + of + `}[5m])))`, "p99.9"}}},
		one("Answers by status", "reqps", `sum by (status) (rate(meterplex_http_requests_total{`+of+`}[5m]))`, "{{status}}", 5000, 20000),
		one("Refused requests", "reqps", `sum by (reason) (rate(meterplex_http_refused_total{`+of+`}[5m]))`, "{{reason}}", 1, 100),
		one("Wait for a commit", "s", `max by (instance) (meterplex_ingest_queue_wait_seconds{`+of+`})`, "{{instance}}", 0.05, 1),
		one("Conflicts", "cps", `sum by (job) (rate(meterplex_payload_conflicts_total{`+of+`}[5m]))`, "{{job}}", 0.1, 10),
		one("Denied by limits", "cps", `sum by (tenant_class) (rate(meterplex_quota_denied_total{`+of+`}[5m]))`, "{{tenant_class}}", 100,
			10000),
	}}
}

func pipeBoard() Dashboard {
	leases := one("Leased partitions", "short", `sum by (job) (meterplex_relay_leases{`+of+`})`, "{{job}}", 31.5, 31)
	leases.Falling = true
	return Dashboard{"pipe", "Meterplex: pipe", []Panel{leases,
		one("Published records", "cps", `sum by (topic) (rate(meterplex_events_published_total{`+of+`}[5m]))`, "{{topic}}", 20000, 40000),
		one("Events that were never published", "short", `max by (job) (meterplex_outbox_unpublished_count{`+of+`})`, "{{job}}", 10000,
			1000000),
		one("Refused records", "cps", `sum by (topic, by) (rate(meterplex_publish_refused_total{`+of+`}[5m]))`, "{{topic}} {{by}}", 0.01,
			1),
		one("Lag of consumers", "short", `sum by (topic) (max by (topic, partition) (meterplex_consumer_lag{`+of+`}))`, "{{topic}}", 500,
			100000),
		one("Consumed events", "cps", `sum by (consumer, result) (rate(meterplex_events_consumed_total{`+of+`}[5m]))`,
			"{{consumer}} {{result}}", 20000, 40000),
		one("Events that became dead letters", "cps", `sum by (stage) (rate(meterplex_events_dlq_total{`+of+`}[5m]))`, "{{stage}}", 0.0166,
			1),
	}}
}

func projectionBoard() Dashboard {
	return Dashboard{"projections", "Meterplex: projections", []Panel{
		one("Events to apply", "short", `max by (projection) (meterplex_projection_lag_events{`+of+`})`, "{{projection}}", 500, 100000),
		one("Age of the oldest event to apply", "s", `max by (projection) (meterplex_projection_lag_seconds{`+of+`})`, "{{projection}}", 1,
			5),
		{Title: "From the request to the figure", Unit: "s", Warn: 0.1, Alert: 2, Exprs: []Query{
			{`histogram_quantile(0.5, sum by (le) (rate(meterplex_end_to_end_seconds_bucket{` + of +
				`,consumer="meterplex-usage-aggregator"}[5m])))`, "p50"},
			{`histogram_quantile(0.999, sum by (le) (rate(meterplex_end_to_end_seconds_bucket{` + of +
				`,consumer="meterplex-usage-aggregator"}[5m])))`, "p99.9"}}},
		one("Duration of transactions, p99", "s",
			`histogram_quantile(0.99, sum by (le, consumer) (rate(meterplex_event_processing_duration_seconds_bucket{`+of+`}[5m])))`,
			"{{consumer}}", 0.5, 5),
		one("Rows that differ from the log", "short", `max by (projection) (meterplex_projection_drift_rows{`+of+`})`, "{{projection}}",
			0.5, 1),
		one("Accounts that differ from the log", "short", `max by (job) (meterplex_quota_drift{`+of+`})`, "{{job}}", 0.5, 1),
		one("Open background processes", "short", `max by (state) (meterplex_saga_open{`+of+`})`, "{{state}}", 100, 1000),
		one("Open Stripe deliveries", "short", `max by (state) (meterplex_billing_pushes_open{`+of+`})`, "{{state}}", 100, 10000),
		one("Deliveries of webhooks that wait", "short", `max by (job) (meterplex_webhook_deliveries_pending{`+of+`})`, "{{job}}", 1000,
			100000),
	}}
}

func databaseBoard() Dashboard {
	monitored := one("The login is a member of pg_monitor", "bool", `max by (job) (meterplex_database_monitored{`+of+`})`, "{{job}}", 0.5,
		0.1)
	monitored.Falling = true
	return Dashboard{"database", "Meterplex: database", []Panel{
		one("Events in the log", "short", `max by (job) (meterplex_log_head{`+of+`})`, "{{job}}", 1e9, 1e10),
		one("Kept WAL, as a share of its limit", "percentunit",
			`max by (job) (meterplex_wal_bytes{`+of+`}) / max by (job) (meterplex_wal_limit_bytes{`+of+`})`, "{{job}}", 0.5, 0.8),
		one("Time since WAL was archived", "s", `max by (job) (meterplex_wal_archived_seconds{`+of+`})`, "{{job}}", 120, 300),
		one("Lag of standbys", "bytes", `max by (job) (meterplex_standby_lag_bytes{`+of+`})`, "{{job}}", 16777216, 1073741824),
		one("Missing synchronous standbys", "short", `max by (job) (meterplex_synchronous_standbys_missing{`+of+`})`, "{{job}}", 0.5, 1),
		one("Time since an epoch was raised", "s", `min by (reason) (meterplex_log_epoch_raised_seconds{`+of+`})`, "{{reason}}", 86400,
			864000),
		one("Age of the state that instances report", "s", `max by (instance) (meterplex_state_age_seconds{`+of+`})`, "{{instance}}", 10,
			60),
		one("Used share of file systems", "percentunit", `1 - node_filesystem_avail_bytes`+disks+` / node_filesystem_size_bytes`,
			"{{instance}} {{mountpoint}}", 0.7, 0.8),
		monitored,
	}}
}

// dashboards renders the dashboards by name.
func dashboards() map[string]string {
	files := map[string]string{}
	for _, d := range Dashboards() {
		text, _ := json.MarshalIndent(d.json(), "", "  ") // maps of strings and numbers always encode
		files[d.Name] = string(text) + "\n"
	}
	return files
}

type object = map[string]any

// source is the data source that the viewer chooses.
func source() object { return object{"type": "prometheus", "uid": "${datasource}"} }

func (d *Dashboard) json() object {
	var panels []object
	for i := range d.Panels {
		p := d.Panels[i].json()
		p["id"], p["gridPos"] = i+1, object{"h": 8, "w": 12, "x": i % 2 * 12, "y": i / 2 * 8}
		panels = append(panels, p)
	}
	return object{
		"uid": "meterplex-" + d.Name, "title": d.Title, "tags": []string{"meterplex"}, "schemaVersion": 39, "editable": false,
		"refresh": "30s",
		"time":    object{"from": "now-6h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			{"name": "job", "label": "Installation", "type": "query", "datasource": source(),
				"query": "label_values(meterplex_log_head, job)", "refresh": 2, "multi": true, "includeAll": true},
		}},
	}
}

func (p *Panel) json() object {
	var targets []object
	for i, q := range p.Exprs {
		targets = append(targets, object{"refId": string(rune('A' + i)), "datasource": source(), "expr": q.Expr, "legendFormat": q.Legend})
	}
	colors := [3]string{"green", "yellow", "red"}
	steps := []object{{"color": colors[0], "value": nil}, {"color": colors[1], "value": p.Warn}, {"color": colors[2], "value": p.Alert}}
	if p.Falling {
		steps = []object{{"color": colors[2], "value": nil}, {"color": colors[1], "value": p.Alert}, {"color": colors[0], "value": p.Warn}}
	}
	return object{
		"type": "timeseries", "title": p.Title, "datasource": source(), "targets": targets,
		"fieldConfig": object{"defaults": object{"unit": p.Unit, "thresholds": object{"mode": "absolute", "steps": steps},
			"custom": object{"thresholdsStyle": object{"mode": "line"}}}, "overrides": []object{}},
	}
}
