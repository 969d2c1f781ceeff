package webhooks

import "sync"

// place is the right to send the deliveries of one webhook.
type place struct {
	r       *delivering
	failing bool
	mu      sync.Mutex
	slow    bool // it is one of the slow places
	ended   bool // it was given back: a timer that fired before may still call slowDown
}

// place takes a place; nil: none is free.
func (r *delivering) place(failing bool) *place {
	if !take(r.all) {
		return nil
	}
	if failing && !take(r.failing) {
		<-r.all
		return nil
	}
	return &place{r: r, failing: failing}
}

// slowDown exchanges a place for a slow one, if one is free: another webhook gets it.
func (p *place) slowDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.slow || !take(p.r.slow) {
		return
	}
	p.slow = true
	p.giveBack()
	p.r.Requests.Notify()
}

func (p *place) giveBack() {
	if <-p.r.all; p.failing {
		<-p.r.failing
	}
}

// end gives the place back.
func (p *place) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.slow {
		<-p.r.slow
		return
	}
	p.giveBack()
}

// take takes a place if one is free.
func take(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		return false
	}
}
