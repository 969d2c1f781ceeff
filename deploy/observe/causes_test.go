package observe

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/prometheus"
	"github.com/meterplex/meterplex/projections"
)

// causes are faults as the service reports them, by the alert that they cause. infra/prometheus tests the gauges of the database's state.
func causes() map[string]func(m *prometheus.Metrics) {
	consumer := &projections.Consumer{Name: events.GroupAggregator, Topic: events.TopicUsageValidated}
	return map[string]func(m *prometheus.Metrics){
		"MeterplexLogHole":               func(m *prometheus.Metrics) { m.Relay().Hole() },
		"MeterplexRecordsWithheld":       func(m *prometheus.Metrics) { m.Relay().Withheld(events.TopicUsageRaw) },
		"MeterplexPublishRefused":        func(m *prometheus.Metrics) { m.Relay().Refused(events.TopicUsageRaw, true) },
		"MeterplexPartitionWithoutLease": func(m *prometheus.Metrics) { m.Relay().Leases(events.Partitions - 1) },
		"MeterplexDeadLetters": func(m *prometheus.Metrics) {
			m.Observe(consumer, projections.Batch{Applied: make([]events.Envelope, 50), Failed: make([]projections.Failure, 50)})
		},
		"MeterplexConsumerErrors": func(m *prometheus.Metrics) {
			m.Observe(consumer, projections.Batch{Applied: make([]events.Envelope, 90), Failed: make([]projections.Failure, 10)})
		},
		"MeterplexUsageRefused": func(m *prometheus.Metrics) {
			refused := make([]events.Envelope, 50)
			for i := range refused {
				refused[i].Subject = events.UsageRejected
			}
			m.Observe(&projections.Consumer{Name: events.GroupDeadLetter, Topic: events.TopicUsageDeadLetter}, projections.Batch{Applied: refused})
		},
		"MeterplexSagaPartial":        func(m *prometheus.Metrics) { m.SagaEnded("period_close", domain.SagaIsPartial) },
		"MeterplexWebhookDisabled":    func(m *prometheus.Metrics) { m.WebhookDisabled(&domain.Webhook{Reason: domain.WebhookGone}) },
		"MeterplexCertificateExpires": func(m *prometheus.Metrics) { m.CertificateExpires(time.Now().Add(24 * time.Hour)) },
	}
}

// TestAlertsFireForTheirCauses feeds the metrics of a process before and after a fault to the rule. Counters grow by the fault each minute.
func TestAlertsFireForTheirCauses(t *testing.T) {
	folder := t.TempDir()
	var names []string
	for alert, cause := range causes() {
		a := *(&ruleCase{alert: alert}).of()
		registry := prom.NewRegistry()
		m := prometheus.New(registry)
		m.SagaKinds([]string{"period_close"})
		m.Relay().Leases(events.Partitions)
		before := seriesOf(t, registry, a.Expr)
		cause(m)
		var b strings.Builder
		fmt.Fprintf(&b, "rule_files: [%s-rules.yaml]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n", alert)
		for series, v := range seriesOf(t, registry, a.Expr) {
			history := fmt.Sprintf("%vx29 %vx60", before[series], v)
			if strings.Contains(series, "_total") {
				history = fmt.Sprintf("0x29 0+%vx60", v)
			}
			fmt.Fprintf(&b, "  - series: %s\n    values: %s\n", quote(with(series, `instance="a"`)), quote(strings.Replace(history, "NaNx29", "_x30", 1)))
		}
		const firing = `count(count by (alertname) (ALERTS{alertstate="firing"}))`
		fmt.Fprintf(&b, "  promql_expr_test:\n  - expr: %[1]s\n    eval_time: 29m\n  - expr: %[1]s\n    eval_time: 60m\n    exp_samples: [{labels: '{}', value: 1}]\n", quote(firing))
		write(t, folder, alert+"-rules.yaml", rules(a))
		write(t, folder, alert+".yaml", b.String())
		names = append(names, alert+".yaml")
	}
	for name, failure := range testRules(t, folder, names) {
		if failure != "" {
			t.Errorf("%s: %.2000s", name, failure)
		}
	}
}

// seriesOf returns the values of the series of the metrics of an expression.
func seriesOf(t *testing.T, registry *prom.Registry, expr string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if !slices.Contains(metricsOf(expr), f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if len(all) == 0 {
		t.Fatalf("no metric of %s", expr)
	}
	return all
}
