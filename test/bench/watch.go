package main

import (
	"fmt"
	"sync/atomic"
)

// pipelineObserver observes B4 while the load runs and until all events are in the aggregates.
type pipelineObserver struct {
	run   *run
	ended atomic.Bool // the load

	first, last progress
	atEnd       progress // the first observation after the load
	behind      int64    // the greatest lag
	memory      Memory   // at the end of the load and of the drain
}

// observe records one observation, and reports whether it was the last.
func (w *pipelineObserver) observe(p progress) bool {
	if w.first.at.IsZero() || p.recorded == w.first.recorded {
		w.first = p
	}
	w.last = p
	w.behind = max(w.behind, p.recorded-p.applied)
	if !w.ended.Load() {
		return false
	}
	if w.atEnd.at.IsZero() {
		w.atEnd = p
	}
	// The kernel keeps the service's peak. Reading PostgreSQL's proportional memory repeatedly
	// would cost more than the whole load.
	if p.caughtUp() || w.atEnd.at.Equal(p.at) {
		w.memory = w.memory.most(w.run.servers.meter.memory())
	}
	return p.caughtUp()
}

// addNotes adds the notes of the figure.
func (w *pipelineObserver) addNotes(f *Figure) {
	during := rate{events: int(w.atEnd.applied - w.first.applied), took: w.atEnd.at.Sub(w.first.at)}
	f.note("applied while the load ran", fmt.Sprintf("%.0f events/s over %.1f s", during.perSecond(), during.took.Seconds()))
	f.note("recorded while the load ran", fmt.Sprintf("%.0f events/s", float64(w.atEnd.recorded-w.first.recorded)/during.took.Seconds()))
	f.note("not yet applied", fmt.Sprintf("%d events at the end of the load, %d at most; all applied %.1f s after it",
		w.atEnd.recorded-w.atEnd.applied, w.behind, w.last.at.Sub(w.atEnd.at).Seconds()))
	f.note("memory of the service (aim of B11: < 256 MiB)", fmt.Sprintf("%.0f MiB at most", w.memory.ServicePeak))
}
