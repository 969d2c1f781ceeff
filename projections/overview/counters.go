package overview

import (
	"math"
	"sync/atomic"
	"time"
)

// Verdicts counts the verdicts of one instance on usage, of all transports.
type Verdicts struct{ accepted, duplicates, conflicts, rejected atomic.Int64 }

// Add counts verdicts.
func (v *Verdicts) Add(accepted, duplicates, conflicts, rejected int) {
	v.accepted.Add(int64(accepted))
	v.duplicates.Add(int64(duplicates))
	v.conflicts.Add(int64(conflicts))
	v.rejected.Add(int64(rejected))
}

// tally is the counts of Verdicts at a time.
type tally struct {
	at                                        time.Time
	accepted, duplicates, conflicts, rejected int64
}

func (v *Verdicts) at(now time.Time) tally {
	return tally{now, v.accepted.Load(), v.duplicates.Load(), v.conflicts.Load(), v.rejected.Load()}
}

// since returns the rates between two tallies.
func (t tally) since(before tally) Rates {
	seconds := t.at.Sub(before.at).Seconds()
	if seconds <= 0 {
		return Rates{}
	}
	rate := func(n int64) float64 { return rounded(float64(n)/seconds, 1) }
	return Rates{rate(t.accepted - before.accepted), rate(t.duplicates - before.duplicates), rate(t.conflicts - before.conflicts),
		rate(t.rejected - before.rejected)}
}

// Distribution is a histogram of a consumer since the instance started: Counts[i] is the number of values up to
// Bounds[i], and the last count that of all values.
type Distribution struct {
	Consumer string
	Bounds   []float64
	Counts   []uint64
}

// since returns the freshness by the values that were added after an earlier distribution of the consumer.
// The zero Freshness has no events.
func (d *Distribution) since(before *Distribution) Freshness {
	counts := make([]uint64, len(d.Counts))
	for i := range counts {
		if counts[i] = d.Counts[i]; before != nil && i < len(before.Counts) {
			counts[i] -= before.Counts[i]
		}
	}
	n := counts[len(counts)-1]
	if n == 0 {
		return Freshness{Consumer: d.Consumer}
	}
	return Freshness{Consumer: d.Consumer, Events: int64(n), P50Seconds: quantile(0.5, d.Bounds, counts),
		P99Seconds: quantile(0.99, d.Bounds, counts)}
}

// quantile interpolates within the bucket of a quantile, as histogram_quantile of Prometheus does. A value beyond
// the last bound counts as the bound.
func quantile(q float64, bounds []float64, counts []uint64) float64 {
	rank := q * float64(counts[len(counts)-1])
	for i, bound := range bounds {
		if float64(counts[i]) < rank {
			continue
		}
		lower, below := 0.0, uint64(0)
		if i > 0 {
			lower, below = bounds[i-1], counts[i-1]
		}
		return rounded(lower+(bound-lower)*(rank-float64(below))/float64(counts[i]-below), 6)
	}
	return bounds[len(bounds)-1]
}

func rounded(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
