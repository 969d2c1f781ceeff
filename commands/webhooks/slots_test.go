package webhooks

import "testing"

// TestASlotIsGivenBackOnce: the timer of a request can fire as the request ends, so that slowDown is called after end.
func TestASlotIsGivenBackOnce(t *testing.T) {
	r := &delivering{all: make(chan struct{}, 4), failing: make(chan struct{}, 4), slow: make(chan struct{}, 4), Deliverer: &Deliverer{}}
	taken := func() [3]int { return [3]int{len(r.all), len(r.failing), len(r.slow)} }
	other := r.slot(true)
	for _, failing := range []bool{false, true} {
		before := taken()
		p := r.slot(failing)
		p.end()
		p.slowDown()
		if got := taken(); got != before {
			t.Errorf("failing %t: %v slots are taken instead of %v", failing, got, before)
		}
	}
	other.slowDown()
	other.slowDown()
	other.end()
	if got := taken(); got != [3]int{} {
		t.Errorf("%v slots are taken, and no webhook has one", got)
	}
}
