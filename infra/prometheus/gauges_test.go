package prometheus

import (
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/internal/must"
)

// A difference is counted while its month is compared. Otherwise the alert would never end.
func TestDifferencesAreOfMonthsThatAreCompared(t *testing.T) {
	pool := migrated(t)
	r := newReader(pool)
	m, registry := r.metrics, r.registry
	must.Exec(t, pool, `INSERT INTO push_comparisons (provider, customer, event, month, total, delivered, compared_at)
 SELECT 'stripe', c, 'calls', to_char((now() - age::interval) AT TIME ZONE 'UTC', 'YYYY-MM'), 5, delivered, now()
 FROM (VALUES ('now', '0', 5), ('differs', '0', 4), ('too', '35 days', 6), ('old', '70 days', 4), ('older', '400 days', 4)) v (c, age,
 delivered)`)
	r.read(t)
	if got := series(t, registry, "meterplex_billing_difference"); !maps.Equal(got, map[string]float64{"": 2}) {
		t.Errorf("%v differences instead of 2", got)
	}
	m.PushAttempted(push.KeyRefused)
	if got := series(t, registry, "meterplex_billing_push_attempts_total")["key_refused "]; got != 1 {
		t.Errorf("%v attempts with a refused key", got)
	}
}

func TestSagasAreCountedByKind(t *testing.T) {
	pool := migrated(t)
	r := newReader(pool)
	m, registry := r.metrics, r.registry
	is := func(name string, want map[string]float64) {
		t.Helper()
		r.read(t)
		if got := series(t, registry, name); !maps.Equal(got, want) {
			t.Errorf("%s is %v instead of %v", name, got, want)
		}
	}
	is("meterplex_saga_inflight", map[string]float64{"known ": 0})
	for _, kind := range []string{"known", "newer", "newer"} {
		must.Exec(t, pool, `INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, created_at) VALUES ($1, $2, $1, 'k', 's',
			'RUNNING', now(), now())`, uuid.New(), kind)
	}
	is("meterplex_saga_inflight", map[string]float64{"known ": 1, "newer ": 2})
	must.Exec(t, pool, `UPDATE sagas SET state = 'DRIFT' WHERE kind = 'known'`)
	is("meterplex_saga_open", map[string]float64{"RUNNING ": 2, "PARTIAL ": 0, "DRIFT ": 1})
	must.Exec(t, pool, `UPDATE sagas SET state = 'COMPLETED', outcome = 'success', ended_at = now()`)
	is("meterplex_saga_inflight", map[string]float64{"known ": 0})
	m.SagaEnded("known", domain.SagaIsPartial)
	is("meterplex_saga_completed_total", map[string]float64{"known compensated ": 0, "known partial ": 1, "known success ": 0})
}

func TestTheQueuesOfWebhooksAreMeasured(t *testing.T) {
	pool := migrated(t)
	r := newReader(pool)
	m, registry := r.metrics, r.registry
	id := uuid.New()
	for _, sql := range []string{
		`INSERT INTO webhooks (id, tenant_id, partition, url, events, status, cursor, created_at, failing_since, next_at) VALUES ($1, $1, 0,
			'https://example.com', '{}', 'ENABLED', 1, now(), now(), now() - interval '1 hour')`,
		`INSERT INTO webhook_deliveries (id, webhook_id, tenant_id, event_id, type, state, next_at, ended_at, created_at)
			SELECT gen_random_uuid(), $1, $1, gen_random_uuid(), 'webhook.test', state, next_at, ended_at, now()
 FROM (VALUES ('PENDING', now(), NULL), ('DELIVERED', NULL, now()), ('FAILED', NULL, now())) s (state, next_at, ended_at)`,
	} {
		must.Exec(t, pool, sql, id)
	}
	r.read(t)
	m.WebhookSent(webhook.Test, webhook.Result{Status: 204, Duration: time.Second})
	m.WebhookSent(webhook.Test, webhook.Result{Status: 500})
	m.WebhookSent(webhook.Test, webhook.Result{Error: "x"})
	m.WebhookDisabled(&webhook.Webhook{Reason: new(webhook.Gone)})
	m.WebhookDisabled(&webhook.Webhook{Reason: new(webhook.Failing)})
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
