package edge

import (
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/problem"
)

// slot is the right to be one of the requests in flight. With the zero value a request needs no slot.
type slot struct {
	in   *admission.Bound   // of the requests of the same kind
	own  *admission.Counter // those of the tenant; nil for operators
	held bool
}

// acquire returns a problem if no slot is free, or no further one for the tenant.
func (p *slot) acquire() *problem.Problem {
	if p.in == nil {
		return nil
	}
	if p.held = p.in.Acquire(1, p.own); p.held {
		return nil
	}
	if p.own != nil && p.own.Load() > 0 {
		return problem.OverShare("The tenant has reached its limit of requests in work; send this one again when others " +
			"are answered")
	}
	return problem.Overloaded(problem.BecauseRequests, "Too many requests are in work; send this one again")
}

// release returns the slot, if it is held.
func (p *slot) release() {
	if p.held {
		p.in.Release(1, p.own)
		p.held = false
	}
}
