package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain/push"
)

// newPushes creates the counter of attempts to push amounts to the billing provider.
func newPushes(registry *prom.Registry) *prom.CounterVec {
	attempts := prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_billing_push_attempts_total",
		Help: "Attempts of this instance to send a Stripe delivery, by outcome: delivered, refused, key_refused, later or unknown."},
		[]string{"outcome"})
	registry.MustRegister(attempts)
	for _, outcome := range push.Outcomes() {
		attempts.WithLabelValues(string(outcome))
	}
	return attempts
}

// PushAttempted counts an attempt.
func (m *Metrics) PushAttempted(outcome push.Outcome) {
	m.pushes.WithLabelValues(string(outcome)).Inc()
}
