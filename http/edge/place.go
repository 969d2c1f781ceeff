package edge

import (
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/problem"
)

// place is the place of one request among those in flight.
type place struct {
	in    *admission.Counter // requests of the same kind
	bound int64
	held  bool
}

// acquire returns a problem if all places are in use.
func (p *place) acquire() *problem.Problem {
	if p.held = p.in.Enter(p.bound); !p.held {
		return problem.Overloaded(problem.BecauseRequests, "Too many requests are in work; send this one again")
	}
	return nil
}

// release returns the place, if it is held.
func (p *place) release() {
	if p.held {
		p.in.Leave()
		p.held = false
	}
}
