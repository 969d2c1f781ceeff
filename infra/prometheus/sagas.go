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
const openSagasSQL = `SELECT kind, count(*) FROM sagas WHERE ended_at IS NULL GROUP BY kind`

// readSagas reads the open sagas of all kinds, also of those that only a newer release knows. Every instance reports them.
func (m *Metrics) readSagas(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	rows, err := pool.Query(ctx, openSagasSQL)
	if err != nil {
		return fmt.Errorf("counting open sagas: %w", err)
	}
	counts := map[string]int64{}
	for _, kind := range m.sagaKinds {
		counts[kind] = 0
	}
	var kind string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&kind, &n}, func() error { counts[kind] = n; return nil }); err != nil {
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
	m.sagasSeen = counts
	return nil
}

// newSagas creates the metrics of sagas.
func newSagas(registry *prom.Registry) (open *prom.GaugeVec, ended *prom.CounterVec) {
	open = prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_saga_inflight", Help: "Open sagas by kind."}, []string{"kind"})
	ended = prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_saga_completed_total", Help: "Sagas that ended on this instance, by outcome: success, compensated or partial."}, []string{"kind", "outcome"})
	registry.MustRegister(open, ended)
	return open, ended
}
