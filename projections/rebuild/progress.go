package rebuild

import (
	"fmt"

	"github.com/meterplex/meterplex/projections/state"
)

// Progress is a rebuild's progress in events of the log: positions are dense, so only the
// time is an estimate. EventsPerSecond is the rate so far.
type Progress struct {
	EventsDone      int64        `json:"eventsDone"`
	EventsTotal     int64        `json:"eventsTotal"`
	EventsPerSecond float64      `json:"eventsPerSecond"`
	EtaSeconds      *float64     `json:"etaSeconds"` // null if unknown
	Converges       bool         `json:"converges"`
	Note            string       `json:"note,omitempty"`
	Units           []state.Unit `json:"units,omitempty"`

	pastTarget bool // the events present at the start are folded
	begun      bool // a worker has folded some of it
}

// overdue is the age at which a rebuild that has not begun indicates that no worker runs: a
// worker polls four times a second. No registry lists the instances with the role.
const overdue = 30 // seconds

// noteIdle names the role that must do the work, if it is not being done.
func (p *Progress) noteIdle(seconds float64) {
	if !p.begun && seconds > overdue {
		p.Note = "It waits for an instance with the role projector and its version of the logic, but no such instance seems to run: " +
			"start one (serve --roles=projector)."
	}
}

// progressOf sums up units that were folded for some seconds. Once all have joined, the
// rate covers the events present at the start: the later ones came from the live feed.
func progressOf(units []state.Unit, seconds float64, ready bool) *Progress {
	if len(units) == 0 {
		return nil
	}
	p := &Progress{Converges: true, Units: units, pastTarget: true}
	var folded, grown int64
	for _, u := range units {
		p.EventsDone += min(u.Position, u.Live)
		p.EventsTotal += u.Live
		grown += max(u.Live-u.Target, 0)
		folded += min(u.Position, u.Live)
		p.pastTarget = p.pastTarget && u.Position >= u.Target
		p.begun = p.begun || u.Joined || u.Position > 0
	}
	if ready {
		folded -= grown
	}
	if seconds > 0 {
		p.EventsPerSecond = float64(folded) / seconds
	}
	p.estimate(grown, seconds, ready)
	return p
}

// estimate predicts when the fold reaches the live generation, which moves, too: never,
// if that is as fast.
func (p *Progress) estimate(grown int64, seconds float64, ready bool) {
	left := p.EventsTotal - p.EventsDone
	if ready || left == 0 {
		eta := 0.0
		p.EtaSeconds = &eta
		return
	}
	if seconds <= 0 || p.EventsDone == 0 {
		return
	}
	live := float64(grown) / seconds
	if net := p.EventsPerSecond - live; net > 0 {
		eta := float64(left) / net
		p.EtaSeconds = &eta
		return
	}
	if p.pastTarget {
		p.Converges = false
		p.Note = fmt.Sprintf("It does not converge: %.0f events/s are added up and %.0f/s come in; give it more workers, or a quieter hour.",
			p.EventsPerSecond, live)
	}
}
