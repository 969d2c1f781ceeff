package eventlog

import (
	"errors"

	"github.com/meterplex/meterplex/commands/metering"
)

// errHeldBack means that a strict submission has a refused event: the group is decided again, and stores none of its events.
var errHeldBack = errors.New("an event of a strict submission is refused")

// holdBack makes the events of each strict submission with a refused event probes, and reports whether there is one.
func (g *group) holdBack() (found bool) {
	for _, s := range g.subs {
		if s.strict && s.held == nil && s.hasRefused() {
			s.holdBack()
			found = true
		}
	}
	return found
}

func (s *submission) hasRefused() bool {
	for i := range s.places {
		if status := s.places[i].Status; status != metering.Appended && status != metering.Duplicate {
			return true
		}
	}
	return false
}

// holdBack keeps the refusals: probes of the same events do not get them again.
func (s *submission) holdBack() {
	s.held = make([]metering.Placement, len(s.batch))
	for i := range s.batch {
		sub := &s.batch[i]
		switch p := s.places[i]; p.Status {
		case metering.Denied, metering.Later:
			s.held[i] = p
		case metering.Conflict:
			s.held[i] = metering.Placement{Status: metering.Conflict} // of an event of this submission, unless the probe finds another
		}
		sub.ProbeOnly, sub.Quota, sub.Target = true, nil, nil
	}
}

// refill makes the group again of some of its submissions, whose events may have become probes.
func (g *group) refill(subs []*submission) {
	sent := g.sent
	g.fill(subs)
	g.sent = sent
}

// settleHeld answers the events of a strict submission that is refused.
func (s *submission) settleHeld() {
	for i := range s.held {
		if s.places != nil && s.places[i].Status == metering.Absent && s.held[i].Status != metering.Unknown {
			s.places[i] = s.held[i]
		}
	}
}
