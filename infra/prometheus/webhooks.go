package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain/webhook"
)

// webhookMetrics are the metrics of webhooks.
type webhookMetrics struct {
	attempts *prom.CounterVec
	duration prom.Histogram
	disabled *prom.CounterVec
}

// Outcomes of an attempt.
const (
	webhookDelivered = "delivered"
	webhookRefused   = "refused" // an answer other than 2xx
	webhookNoAnswer  = "no_answer"
)

// newWebhooks creates the metrics of webhooks.
func newWebhooks(registry *prom.Registry) *webhookMetrics {
	m := &webhookMetrics{
		attempts: prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_webhook_attempts_total",
			Help: "Requests to webhooks by type of event and outcome: delivered, refused (an answer other than 2xx) or no_answer."},
			[]string{"type", "outcome"}),
		duration: prom.NewHistogram(prom.HistogramOpts{Name: "meterplex_webhook_attempt_duration_seconds",
			Help: "Duration of a request to a webhook.", Buckets: latencies()}),
		disabled: prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_webhooks_disabled_total",
			Help: "Webhooks that this instance disabled, by reason: gone (410) or failing (5 days without a success)."},
			[]string{"reason"}),
	}
	for _, kind := range append(webhook.Events(), webhook.Test) {
		for _, outcome := range []string{webhookDelivered, webhookRefused, webhookNoAnswer} {
			m.attempts.WithLabelValues(kind, outcome)
		}
	}
	m.disabled.WithLabelValues("gone")
	m.disabled.WithLabelValues("failing")
	registry.MustRegister(m.attempts, m.duration, m.disabled)
	return m
}

// WebhookSent counts a request to a webhook.
func (m *Metrics) WebhookSent(kind string, r webhook.Result) {
	outcome := webhookRefused
	if r.Delivered() {
		outcome = webhookDelivered
	} else if r.Status == 0 {
		outcome = webhookNoAnswer
	}
	m.webhooks.attempts.WithLabelValues(kind, outcome).Inc()
	m.webhooks.duration.Observe(r.Duration.Seconds())
}

// WebhookDisabled counts a webhook that the service disabled.
func (m *Metrics) WebhookDisabled(w *webhook.Webhook) {
	reason := "failing"
	if *w.Reason == webhook.Gone {
		reason = "gone"
	}
	m.webhooks.disabled.WithLabelValues(reason).Inc()
}
