package query

import "testing"

// A consumer that traffic never lets catch up still arrives.
func TestArrivalUnderTraffic(t *testing.T) {
	a := arrival{position: 10, target: -1}
	for _, look := range []struct {
		decided, lastValidated, folded int64
		want                           bool
	}{{9, 20, 5, false}, {12, 30, 15, false}, {20, 40, 29, false}, {25, 50, 30, true}} {
		if got := a.arrived(&Standing{decided: look.decided, lastValidated: look.lastValidated, Folded: look.folded, passed: 1}); got != look.want {
			t.Errorf("%+v: %v", look, got)
		}
	}
}
