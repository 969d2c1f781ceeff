package prometheus

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/overview"
)

// webhookMetrics are the metrics of webhooks.
type webhookMetrics struct {
	attempts *prom.CounterVec
	duration prom.Histogram
	disabled *prom.CounterVec
	pending  prom.Gauge
	oldest   prom.Gauge
	failing  prom.Gauge
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
		attempts: prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_webhook_attempts_total", Help: "Requests to webhooks by type of event and outcome: delivered, refused (an answer other than 2xx) or no_answer."}, []string{"type", "outcome"}),
		duration: prom.NewHistogram(prom.HistogramOpts{Name: "meterplex_webhook_attempt_duration_seconds", Help: "Duration of a request to a webhook.", Buckets: latencies()}),
		disabled: prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_webhooks_disabled_total", Help: "Webhooks that this instance disabled, by reason: gone (410) or failing (5 days without a success)."}, []string{"reason"}),
		pending:  prom.NewGauge(prom.GaugeOpts{Name: "meterplex_webhook_deliveries_pending", Help: "Deliveries of webhooks that wait for their next attempt; 1000000: at least so many."}),
		oldest:   prom.NewGauge(prom.GaugeOpts{Name: "meterplex_webhook_oldest_due_seconds", Help: "The longest time for which a webhook with a due delivery waits for an instance."}),
		failing:  prom.NewGauge(prom.GaugeOpts{Name: "meterplex_webhooks_failing", Help: "Enabled webhooks whose last request failed."}),
	}
	for _, kind := range append(domain.WebhookEvents(), domain.WebhookTest) {
		for _, outcome := range []string{webhookDelivered, webhookRefused, webhookNoAnswer} {
			m.attempts.WithLabelValues(kind, outcome)
		}
	}
	m.disabled.WithLabelValues("gone")
	m.disabled.WithLabelValues("failing")
	registry.MustRegister(m.attempts, m.duration, m.disabled, m.pending, m.oldest, m.failing)
	return m
}

// WebhookSent counts a request to a webhook.
func (m *Metrics) WebhookSent(kind string, r domain.WebhookResult) {
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
func (m *Metrics) WebhookDisabled(w *domain.Webhook) {
	reason := "failing"
	if w.Reason == domain.WebhookGone {
		reason = "gone"
	}
	m.webhooks.disabled.WithLabelValues(reason).Inc()
}

// webhooksSQL uses the indexes of waiting deliveries and of due webhooks. It counts a million deliveries at most, since every instance asks each 2 s.
const webhooksSQL = `SELECT (SELECT count(*) FROM (SELECT FROM webhook_deliveries WHERE state = 'PENDING' LIMIT 1000000) d),
 (SELECT coalesce(extract(epoch FROM greatest(now() - min(next_at), '0')), 0)::float8 FROM webhooks WHERE status = 'ENABLED' AND next_at IS NOT NULL),
 (SELECT count(*) FROM webhooks WHERE status = 'ENABLED' AND failing_since IS NOT NULL)`

// readWebhooks reads the queues of webhooks. Every instance reports them.
func (m *Metrics) readWebhooks(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	var pending, failing int64
	var oldest float64
	if err := pool.QueryRow(ctx, webhooksSQL).Scan(&pending, &oldest, &failing); err != nil {
		return fmt.Errorf("counting deliveries of webhooks: %w", err)
	}
	m.webhooks.pending.Set(float64(pending))
	m.webhooks.oldest.Set(oldest)
	m.webhooks.failing.Set(float64(failing))
	return nil
}

// disabledWebhooksSQL reads all webhooks: no index has the disabled ones.
const disabledWebhooksSQL = `SELECT count(*), min(failing_since), (array_agg(tenant_id ORDER BY failing_since, id))[1] FROM webhooks WHERE status = 'DISABLED' AND reason = ANY ($1)`

// readDisabledWebhooks counts the webhooks that the service has disabled.
func (m *Metrics) readDisabledWebhooks(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	var n int64
	var since *time.Time
	var tenant *uuid.UUID
	if err := pool.QueryRow(ctx, disabledWebhooksSQL, []string{domain.WebhookGone, domain.WebhookFailing}).Scan(&n, &since, &tenant); err != nil {
		return fmt.Errorf("counting disabled webhooks: %w", err)
	}
	var list []overview.Attention
	if tenant != nil {
		list = overview.Item(overview.DisabledWebhook, "", n, since, "/api/v1/tenants/"+tenant.String()+"/webhooks")
		list[0].TenantID = tenant
	}
	m.board.SetAttention(overview.DisabledWebhook, list)
	return nil
}
