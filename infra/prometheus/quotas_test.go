package prometheus

import (
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
)

// An account that differs from the projection of the same events is counted once both are at the head; before, it may be
// a difference of time.
func TestDriftOfAccountsIsCounted(t *testing.T) {
	pool := migrated(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO quota_accounts SELECT gen_random_uuid(), 'calls', '2026-05', n, 2 FROM generate_series(1, 2500) n`)
	exec(`INSERT INTO entitlement_usage (generation, tenant_id, feature, period_key, used, held) SELECT 1, tenant_id, feature, period_key, used, held FROM quota_accounts`)
	drift, registry := newQuotaDrift(), prom.NewRegistry()
	registry.MustRegister(drift.gauge)
	turn := func() float64 {
		t.Helper()
		for range 3 { // of 1000 accounts each
			if err := drift.read(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
		}
		return series(t, registry, "meterplex_quota_drift")[""]
	}
	if n := turn(); n != 0 {
		t.Errorf("%v accounts differ", n)
	}
	exec(`UPDATE quota_accounts SET used = used + 1 WHERE used IN (1, 1200, 2500)`)
	exec(`UPDATE quota_accounts SET held = 0 WHERE used = 7`)
	exec(`DELETE FROM entitlement_usage WHERE used = 8`)
	if n := turn(); n != 5 {
		t.Errorf("%v accounts of 5 differ", n)
	}
	exec(`UPDATE log_heads SET position = position + 1`)
	if n := turn(); n != 0 {
		t.Errorf("%v accounts differ although the projection is behind", n)
	}
}
