package webhooks

import "sync"

// slot is the right to send the deliveries of one webhook.
type slot struct {
	r       *delivering
	failing bool
	mu      sync.Mutex
	slow    bool // it is one of the slow slots
	ended   bool // it was given back: a timer that fired before may still call slowDown
}

// slot takes a slot; nil: no slot is free.
func (r *delivering) slot(failing bool) *slot {
	if !take(r.all) {
		return nil
	}
	if failing && !take(r.failing) {
		<-r.all
		return nil
	}
	return &slot{r: r, failing: failing}
}

// slowDown exchanges a slot for a slow one, if one is free: another webhook gets it.
func (p *slot) slowDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.slow || !take(p.r.slow) {
		return
	}
	p.slow = true
	p.giveBack()
	p.r.Requests.Notify()
}

func (p *slot) giveBack() {
	if <-p.r.all; p.failing {
		<-p.r.failing
	}
}

// end gives the slot back.
func (p *slot) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.slow {
		<-p.r.slow
		return
	}
	p.giveBack()
}

// take takes a slot if one is free.
func take(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		return false
	}
}
