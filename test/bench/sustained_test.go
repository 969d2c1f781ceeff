package main

import (
	"testing"
	"time"
)

// A service that sustains capacity events a second, and less while it is overloaded.
func serviceOf(capacity, overloaded float64) func(float64) (trial, error) {
	const d = 8 * time.Second
	return func(perSecond float64) (trial, error) {
		t := trial{offered: perSecond, drained: perSecond}
		if perSecond > capacity {
			t.lag = time.Duration((perSecond/overloaded - 1) * float64(d))
			t.drained = overloaded
		}
		return t, nil
	}
}

func TestTheSustainedRateIsNearTheCapacity(t *testing.T) {
	for _, c := range []struct{ capacity, overloaded float64 }{{16_500, 10_800}, {30_000, 25_000}, {40_100, 20_000}, {5_000, 4_900}} {
		got, tried, err := sustainedRate(serviceOf(c.capacity, c.overloaded))
		// A trial may exceed the capacity by as much as sustainedLag is of its time.
		if err != nil || got > 1.07*c.capacity || got < 0.9*c.capacity {
			t.Errorf("a service that sustains %.0f: %.0f, %v: %s", c.capacity, got, err, tried)
		}
	}
}

func TestARateWithRefusalsOrALongLagIsNotSustained(t *testing.T) {
	for _, bad := range []trial{{refused: 1}, {lag: sustainedLag + time.Millisecond}} {
		if bad.sustained() {
			t.Errorf("%+v is sustained", bad)
		}
	}
	if fine := (trial{lag: sustainedLag}); !fine.sustained() {
		t.Errorf("%+v is not sustained", fine)
	}
}
