package edge

import (
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/problem"
)

// place is the place of one request among those in flight.
type place struct {
	in    *admission.Counter // requests of the same kind
	bound int64
	taken bool
}

// take returns a problem if all places are in use.
func (p *place) take() *problem.Problem {
	if p.taken = p.in.Enter(p.bound); !p.taken {
		return problem.Overloaded(problem.BecauseRequests, "Too many requests are in work; send this one again")
	}
	return nil
}

// leave returns the place, if it is held.
func (p *place) leave() {
	if p.taken {
		p.in.Leave()
		p.taken = false
	}
}
