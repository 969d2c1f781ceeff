package prometheus

import (
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
)

func TestTheQueuesOfWebhooksAreMeasured(t *testing.T) {
	pool, registry := migrated(t), prom.NewRegistry()
	m := New(registry)
	id := uuid.New()
	for _, sql := range []string{
		`INSERT INTO webhooks (id, tenant_id, partition, url, events, status, cursor, created_at, failing_since, next_at) VALUES ($1, $1, 0, 'https://example.com', '{}', 'ENABLED', 1, now(), now(), now() - interval '1 hour')`,
		`INSERT INTO webhook_deliveries (id, webhook_id, tenant_id, event_id, type, state, next_at, created_at) VALUES ($1, $1, $1, $1, 'webhook.test', 'PENDING', now(), now())`,
	} {
		if _, err := pool.Exec(t.Context(), sql, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.readWebhooks(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	m.WebhookSent(domain.WebhookTest, domain.WebhookResult{Status: 204, Duration: time.Second})
	m.WebhookSent(domain.WebhookTest, domain.WebhookResult{Status: 500})
	m.WebhookSent(domain.WebhookTest, domain.WebhookResult{Error: "x"})
	m.WebhookDisabled(&domain.Webhook{Reason: domain.WebhookGone})
	m.WebhookDisabled(&domain.Webhook{Reason: domain.WebhookFailing})
	for name, want := range map[string]float64{"meterplex_webhook_deliveries_pending": 1, "meterplex_webhooks_failing": 1} {
		if got := series(t, registry, name); !maps.Equal(got, map[string]float64{"": want}) {
			t.Errorf("%s is %v instead of %v", name, got, want)
		}
	}
	if got := series(t, registry, "meterplex_webhook_oldest_due_seconds")[""]; got < 3600 {
		t.Errorf("the oldest is due for %v s", got)
	}
	if got := series(t, registry, "meterplex_webhooks_disabled_total"); !maps.Equal(got, map[string]float64{"gone ": 1, "failing ": 1}) {
		t.Errorf("%v", got)
	}
	attempts := series(t, registry, "meterplex_webhook_attempts_total")
	for _, outcome := range []string{"delivered", "refused", "no_answer"} {
		found := false
		for labels, n := range attempts {
			found = found || n == 1 && (labels == outcome+" webhook.test " || labels == "webhook.test "+outcome+" ")
		}
		if !found {
			t.Errorf("no attempt is %s: %v", outcome, attempts)
		}
	}
}
