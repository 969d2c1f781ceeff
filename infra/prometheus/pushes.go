package prometheus

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/overview"
)

// pushMetrics are the metrics of amounts that are pushed to the billing provider.
type pushMetrics struct {
	attempts    *prom.CounterVec
	pushes      *prom.GaugeVec
	oldest      prom.Gauge
	differences prom.Gauge
}

func newPushes(registry *prom.Registry) pushMetrics {
	m := pushMetrics{
		attempts:    prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_billing_push_attempts_total", Help: "Attempts of this instance to push an amount, by outcome: delivered, refused, key_refused, later or unknown."}, []string{"outcome"}),
		pushes:      prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_billing_pushes_open", Help: "Pushes that are not delivered, by state: PENDING, UNKNOWN or FAILED."}, []string{"state"}),
		oldest:      prom.NewGauge(prom.GaugeOpts{Name: "meterplex_billing_oldest_open_push_seconds", Help: "Age of the oldest push that is not delivered."}),
		differences: prom.NewGauge(prom.GaugeOpts{Name: "meterplex_billing_difference", Help: "Meters of customers and months of the last 35 days whose last compared total at the billing provider differs from the delivered amounts."}),
	}
	registry.MustRegister(m.attempts, m.pushes, m.oldest, m.differences)
	for _, outcome := range domain.PushOutcomes() {
		m.attempts.WithLabelValues(string(outcome))
	}
	for _, state := range domain.PushStates() {
		if state != domain.PushStateDelivered {
			m.pushes.WithLabelValues(state)
		}
	}
	return m
}

// PushAttempted counts an attempt.
func (m *Metrics) PushAttempted(outcome domain.PushOutcome) {
	m.billing.attempts.WithLabelValues(string(outcome)).Inc()
}

// Open pushes are found by the index pushes_open, differences by push_comparisons_different. A meter has a row for each of its months. Months of which no push is
// compared any more are left out: their differences would stay for ever.
const openPushesSQL = `SELECT count(*) FILTER (WHERE state = 'PENDING'), count(*) FILTER (WHERE state = 'UNKNOWN'), count(*) FILTER (WHERE state = 'FAILED'),
 coalesce(extract(epoch FROM clock_timestamp() - min(stored_at)), 0)::float8, min(stored_at) FILTER (WHERE state = 'FAILED'), min(unknown_since) FILTER (WHERE state = 'UNKNOWN'),
 (SELECT count(*) FROM push_comparisons WHERE total <> delivered AND month >= to_char((now() - $1::interval) AT TIME ZONE 'UTC', 'YYYY-MM')) FROM pushes WHERE state <> 'DELIVERED'`

// readPushes reads the state of the pushes. Every instance reports it.
func (m *Metrics) readPushes(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	var pending, unknown, failed, differences int64
	var oldest float64
	var failedSince, unknownSince *time.Time
	if err := pool.QueryRow(ctx, openPushesSQL, domain.PushOldest).Scan(&pending, &unknown, &failed, &oldest, &failedSince, &unknownSince, &differences); err != nil {
		return fmt.Errorf("counting open pushes: %w", err)
	}
	m.billing.pushes.WithLabelValues(domain.PushStatePending).Set(float64(pending))
	m.billing.pushes.WithLabelValues(domain.PushStateUnknown).Set(float64(unknown))
	m.billing.pushes.WithLabelValues(domain.PushStateFailed).Set(float64(failed))
	m.billing.oldest.Set(max(0, oldest))
	m.billing.differences.Set(float64(differences))
	m.board.SetAttention(overview.FailedPush, overview.Item(overview.FailedPush, "", failed, failedSince, "/api/v1/pushes?state=FAILED"))
	m.board.SetAttention(overview.UnknownPush, overview.Item(overview.UnknownPush, "", unknown, unknownSince, "/api/v1/pushes?state=UNKNOWN"))
	m.board.SetAttention(overview.PushDifference, overview.Item(overview.PushDifference, "", differences, nil, ""))
	return nil
}
