package prometheus

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/overview"
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
const openSagasSQL = `SELECT kind, state, count(*), min(coalesce(deadline_at, created_at)) FROM sagas WHERE ended_at IS NULL GROUP BY kind, state`

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
	var since time.Time
	found := map[overview.Kind][]overview.Attention{overview.LateClose: nil, overview.LateSaga: nil, overview.DriftingSaga: nil}
	if _, err := pgx.ForEachRow(rows, []any{&kind, &state, &n, &since}, func() error {
		counts[kind] += n
		states[state] += n
		if stuck := stuckSagas(kind, state); stuck != "" {
			found[stuck] = append(found[stuck], overview.Item(stuck, kind, n, &since, "/api/v1/sagas?state="+state+"&kind="+kind)...)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("counting open sagas: %w", err)
	}
	for stuck, list := range found {
		m.board.SetAttention(stuck, list)
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

// stuckSagas returns the kind of the items of sagas in a state, or "" if they need no operator.
func stuckSagas(kind, state string) overview.Kind {
	switch {
	case state == domain.SagaDrift:
		return overview.DriftingSaga
	case state == domain.SagaPartial && kind == commands.SagaPeriodClose:
		return overview.LateClose
	case state == domain.SagaPartial:
		return overview.LateSaga
	}
	return ""
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
