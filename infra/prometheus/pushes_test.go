package prometheus

import (
	"maps"

	"testing"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
)

// A difference is counted while its month is compared. Otherwise the alert would never end.
func TestDifferencesAreOfMonthsThatAreCompared(t *testing.T) {
	pool, registry := migrated(t), prom.NewRegistry()
	m := New(registry)
	if _, err := pool.Exec(t.Context(), `INSERT INTO push_comparisons (provider, customer, event, month, total, delivered, compared_at)
 SELECT 'stripe', c, 'calls', to_char((now() - age::interval) AT TIME ZONE 'UTC', 'YYYY-MM'), 5, delivered, now()
 FROM (VALUES ('now', '0', 5), ('differs', '0', 4), ('too', '35 days', 6), ('old', '70 days', 4), ('older', '400 days', 4)) v (c, age, delivered)`); err != nil {
		t.Fatal(err)
	}
	if err := m.readPushes(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if got := series(t, registry, "meterplex_billing_difference"); !maps.Equal(got, map[string]float64{"": 2}) {
		t.Errorf("%v differences instead of 2", got)
	}
	m.PushAttempted(domain.PushKeyRefused)
	if got := series(t, registry, "meterplex_billing_push_attempts_total")["key_refused "]; got != 1 {
		t.Errorf("%v attempts with a refused key", got)
	}
}
