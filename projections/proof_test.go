package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

// A record of another event than the log's is not folded while the server is in another life than
// the head's epoch, whatever its epoch says.
func TestP2_ARecordProvesItselfInAnotherLifeOfTheServer(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(6)
	w.verdicts(tenant, "calls", 2)
	records := w.topic(events.TopicUsageValidated, 6, 0)
	records[1] = another(records[1], func(e *events.Envelope) { e.EventID = newID() })
	r, seen := w.aggregator(nil)
	owner, err := postgres.OwnerDB(w.url)
	w.must(err)
	defer owner.Close()
	w.log.Close() // the epoch is not raised
	_, err = owner.Exec(`UPDATE log_heads SET started_at = started_at - interval '1 hour'`)
	w.must(err)
	w.process(r, records)
	if seen.ghosts != 1 || w.applied(tenant, "calls") != 1 {
		t.Errorf("applied %d; told %+v", w.applied(tenant, "calls"), seen)
	}
}
