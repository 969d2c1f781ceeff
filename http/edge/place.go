package edge

import (
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/problem"
)

// place is the place of one request among those in flight. The zero value needs none.
type place struct {
	in   *admission.Bound   // of the requests of the same kind
	own  *admission.Counter // those of the tenant; nil for operators
	held bool
}

// acquire returns a problem if no place is free, or none for the tenant.
func (p *place) acquire() *problem.Problem {
	if p.in == nil {
		return nil
	}
	if p.held = p.in.Acquire(1, p.own); p.held {
		return nil
	}
	if p.own != nil && p.own.Load() > 0 {
		return problem.OverShare("The tenant has as many requests in work as one tenant may have; send this one again when others " +
			"are answered")
	}
	return problem.Overloaded(problem.BecauseRequests, "Too many requests are in work; send this one again")
}

// release returns the place, if it is held.
func (p *place) release() {
	if p.held {
		p.in.Release(1, p.own)
		p.held = false
	}
}
