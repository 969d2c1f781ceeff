package prometheus

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
)

// SagaKinds creates the series of the kinds that this binary knows.
func (m *Metrics) SagaKinds(kinds []string) {
	m.sagaKinds = kinds
	for _, kind := range kinds {
		m.sagas.WithLabelValues(kind)
		for _, outcome := range domain.SagaOutcomes() {
			m.sagasEnded.WithLabelValues(kind, outcome)
		}
	}
}

// SagaEnded counts a saga whose last step this instance ran.
func (m *Metrics) SagaEnded(kind, outcome string) { m.sagasEnded.WithLabelValues(kind, outcome).Inc() }

// openSagasSQL uses the index of open sagas.
const openSagasSQL = `SELECT kind, state, count(*) FROM sagas WHERE ended_at IS NULL GROUP BY kind, state`

// readSagas reads the open sagas of all kinds, also of those that only a newer release knows. Every instance reports them.
func (m *Metrics) readSagas(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	rows, err := pool.Query(ctx, openSagasSQL)
	if err != nil {
		return fmt.Errorf("counting open sagas: %w", err)
	}
	counts, states := map[string]int64{}, map[string]int64{}
	for _, kind := range m.sagaKinds {
		counts[kind] = 0
	}
	var kind, state string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&kind, &state, &n}, func() error { counts[kind] += n; states[state] += n; return nil }); err != nil {
		return fmt.Errorf("counting open sagas: %w", err)
	}
	for kind := range m.sagasSeen { // a kind of a newer release, whose last saga has ended
		if _, open := counts[kind]; !open {
			m.sagas.DeleteLabelValues(kind)
		}
	}
	for kind, n := range counts {
		m.sagas.WithLabelValues(kind).Set(float64(n))
	}
	for _, state := range openSagaStates() {
		m.sagaStates.WithLabelValues(state).Set(float64(states[state]))
	}
	m.sagasSeen = counts
	return nil
}

// newSagas creates the metrics of sagas.
func (m *Metrics) newSagas(registry *prom.Registry) {
	m.sagas = prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_saga_inflight", Help: "Open sagas by kind."}, []string{"kind"})
	m.sagaStates = prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_saga_open", Help: "Open sagas by state: RUNNING, PARTIAL (the deadline has passed) or DRIFT (a comparison failed)."}, []string{"state"})
	m.sagasEnded = prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_saga_completed_total", Help: "Sagas that ended on this instance, by outcome: success, compensated or partial."}, []string{"kind", "outcome"})
	for _, state := range openSagaStates() {
		m.sagaStates.WithLabelValues(state)
	}
	registry.MustRegister(m.sagas, m.sagaStates, m.sagasEnded)
}

func openSagaStates() []string {
	return []string{domain.SagaRunning, domain.SagaPartial, domain.SagaDrift}
}
