package consume_test

import (
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
	. "github.com/meterplex/meterplex/projections/projectionstest"
)

// A record of another event than the log's is not folded while the server is in another life than
// the head's epoch, whatever its epoch says.
func TestP2_ARecordProvesItselfInAnotherLifeOfTheServer(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	appendVerdicts(w, tenant, "calls", 2)
	records := w.Topic(events.TopicUsageValidated, 6, 0)
	records[1] = another(records[1], func(e *events.Envelope) { e.EventID = NewID() })
	r, seen := w.Aggregator(nil)
	owner, err := postgres.OwnerDB(w.URL)
	w.Must(err)
	defer owner.Close()
	w.EventLog.Close() // the epoch is not raised
	_, err = owner.Exec(`UPDATE log_heads SET started_at = started_at - interval '1 hour'`)
	w.Must(err)
	w.Process(r, records)
	if seen.Ghosts != 1 || appliedTo(w, tenant, "calls") != 1 {
		t.Errorf("applied %d; told %+v", appliedTo(w, tenant, "calls"), seen)
	}
}

// forged has an event for each stretch, and counts the stretches that it was asked for.
type forged struct{ asked int }

func (f *forged) Stretch(list []events.Envelope, s events.Stretch, epoch int32, _ int) ([]events.Envelope, bool) {
	f.asked++
	return append(list, events.Envelope{Subject: events.UsageValidated, Position: events.Position{Partition: s.Partition, Number: s.UpTo}, Epoch: epoch}), true
}

// While a partition's head may have lost events, memory is not asked: it may hold lost ones.
func TestP4_ALostEventIsNotReadFromMemory(t *testing.T) {
	w := NewDatabase(t)
	r, _ := w.Runner(projections.Consumer{Name: events.GroupEntitlements, Handler: noteHandler{}, Subjects: []events.Subject{events.UsageValidated}})
	memory := &forged{}
	r.Recent = memory
	appendVerdicts(w, TenantIn(1), "calls", 3)
	appendVerdicts(w, TenantIn(2), "calls", 3)
	read := func(partition int16, upTo int64, noted, asked int) {
		t.Helper()
		w.Must(r.ReadUpTo(t.Context(), []events.Position{{Partition: partition, Number: upTo}}))
		if n := notedEvents(w); n != noted || memory.asked != asked {
			t.Errorf("%d events folded, memory asked %d times, want %d and %d", n, memory.asked, noted, asked)
		}
	}
	read(1, 2, 1, 1) // the one event that is forged
	read(1, 2, 1, 1) // it is passed
	read(1, 4, 2, 1) // beyond the head
	_, err := w.Pool.Exec(t.Context(), `UPDATE log_heads SET timeline = timeline + 1 WHERE partition = 2`)
	w.Must(err)
	read(2, 3, 5, 1)
}
