package prometheus

import (
	"maps"
	"testing"

	"github.com/google/uuid"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
)

func TestSagasAreCountedByKind(t *testing.T) {
	pool, registry := migrated(t), prom.NewRegistry()
	m := New(registry)
	m.SagaKinds([]string{"known"})
	is := func(name string, want map[string]float64) {
		t.Helper()
		if err := m.readSagas(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		if got := series(t, registry, name); !maps.Equal(got, want) {
			t.Errorf("%s is %v instead of %v", name, got, want)
		}
	}
	is("meterplex_saga_inflight", map[string]float64{"known ": 0})
	for _, kind := range []string{"known", "newer", "newer"} {
		if _, err := pool.Exec(t.Context(), `INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, created_at) VALUES ($1, $2, $1, 'k', 's', 'RUNNING', now(), now())`, uuid.New(), kind); err != nil {
			t.Fatal(err)
		}
	}
	is("meterplex_saga_inflight", map[string]float64{"known ": 1, "newer ": 2})
	if _, err := pool.Exec(t.Context(), `UPDATE sagas SET state = 'DRIFT' WHERE kind = 'known'`); err != nil {
		t.Fatal(err)
	}
	is("meterplex_saga_open", map[string]float64{"RUNNING ": 2, "PARTIAL ": 0, "DRIFT ": 1})
	if _, err := pool.Exec(t.Context(), `UPDATE sagas SET state = 'COMPLETED', outcome = 'success', ended_at = now()`); err != nil {
		t.Fatal(err)
	}
	is("meterplex_saga_inflight", map[string]float64{"known ": 0})
	m.SagaEnded("known", domain.SagaIsPartial)
	is("meterplex_saga_completed_total", map[string]float64{"known compensated ": 0, "known partial ": 1, "known success ": 0})
}
