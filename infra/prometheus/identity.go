package prometheus

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/projections/overview"
)

// identityGauges report whether accepted = aggregated + rejected + in flight + parked.
type identityGauges struct {
	holds prom.Gauge
	age   prom.GaugeFunc
	read  atomic.Int64 // time of the last read, in nanoseconds
	now   func() time.Time
}

func newIdentityGauges(now func() time.Time) *identityGauges {
	g := &identityGauges{now: now, holds: prom.NewGauge(prom.GaugeOpts{Name: "meterplex_identity_holds",
		Help: "1 if every accepted event is aggregated, rejected, in flight or parked, else 0; NaN before the first read."})}
	g.holds.Set(math.NaN())
	g.read.Store(now().UnixNano())
	g.age = prom.NewGaugeFunc(prom.GaugeOpts{Name: "meterplex_identity_age_seconds", Help: "Time since this instance compared them; since the start if it never could."},
		func() float64 { return max(0, g.now().Sub(time.Unix(0, g.read.Load())).Seconds()) })
	return g
}

// Describe implements prom.Collector.
func (g *identityGauges) Describe(c chan<- *prom.Desc) {
	g.holds.Describe(c)
	g.age.Describe(c)
}

// Collect implements prom.Collector.
func (g *identityGauges) Collect(c chan<- prom.Metric) {
	g.holds.Collect(c)
	g.age.Collect(c)
}

const (
	// identityEvery is the shortest pause between two reads of the identity.
	identityEvery = 10 * time.Second
	// identityShare is the pause after a read, as a multiple of its duration: a read sums rows of all tenants, so that it gets
	// rarer as it gets slower.
	identityShare = 100
)

// WatchIdentity reads the identity until ctx ends. A failed read is repeated after the pause, and identity_age_seconds grows.
func (m *Metrics) WatchIdentity(ctx context.Context, read func(context.Context) (overview.Comparison, error)) error {
	for {
		began := time.Now()
		identity, err := read(ctx)
		if err == nil {
			m.identity.set(identity.Holds)
			m.board.SetIdentity(identity)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(identityEvery, identityShare*time.Since(began))):
		}
	}
}

func (g *identityGauges) set(holds bool) {
	value := 0.0
	if holds {
		value = 1
	}
	g.holds.Set(value)
	g.read.Store(g.now().UnixNano())
}
