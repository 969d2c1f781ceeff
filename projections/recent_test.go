package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// forged has an event for each stretch, and counts the stretches that it was asked for.
type forged struct{ asked int }

func (f *forged) Stretch(list []events.Envelope, s events.Stretch, epoch int32, _ int) ([]events.Envelope, bool) {
	f.asked++
	return append(list, events.Envelope{Subject: events.UsageValidated, Position: events.Position{Partition: s.Partition, Number: s.UpTo}, Epoch: epoch}), true
}

// While a partition's head may have lost events, memory is not asked: it may hold lost ones.
func TestP4_ALostEventIsNotReadFromMemory(t *testing.T) {
	w := newLogFixture(t)
	r, _ := w.runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, Subjects: []events.Subject{events.UsageValidated}})
	memory := &forged{}
	r.Recent = memory
	w.verdicts(tenantIn(1), "calls", 3)
	w.verdicts(tenantIn(2), "calls", 3)
	read := func(partition int16, upTo int64, noted, asked int) {
		t.Helper()
		w.must(r.ReadUpTo(t.Context(), []events.Position{{Partition: partition, Number: upTo}}))
		if n := w.noted(); n != noted || memory.asked != asked {
			t.Errorf("%d events folded, memory asked %d times, want %d and %d", n, memory.asked, noted, asked)
		}
	}
	read(1, 2, 1, 1) // the one event that is forged
	read(1, 2, 1, 1) // it is passed
	read(1, 4, 2, 1) // beyond the head
	_, err := w.pool.Exec(t.Context(), `UPDATE log_heads SET timeline = timeline + 1 WHERE partition = 2`)
	w.must(err)
	read(2, 3, 5, 1)
}
