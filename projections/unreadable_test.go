package projections_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// P1: an event whose payload PostgreSQL cannot read as text is appended with the others of its group:
// no index's expression fails.
func TestP1_NoPayloadKeepsItsNeighboursFromTheLog(t *testing.T) {
	w := newLogFixture(t)
	w.payloads.Allow() // poison
	tenant := tenantIn(3)
	var all []events.Pending
	for _, info := range events.Subjects() {
		for _, payload := range []string{`{"eventId":"\u0000"}`, `{"feature":"\ud800","deadLetterId":"\udc00x"}`, `{"sourcePosition":"\u0000","validated":{"feature":"\uDBFF"}}`, `["\u0000"]`, `"\u0000"`, `{"eventId":"\\\u0000"}`, `{"feature":"a\\\\\udbff"}`, `{"eventId":"\\u0000\u0000"}`, `[1,"\ud800"]`, `1`, `null`} {
			all = append(all, events.Pending{EventID: newID(), Subject: info.Subject, TenantID: tenant, DedupeKey: events.KeyEvent(newID()),
				Actor: events.Actor{Type: "system", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: json.RawMessage(payload)})
		}
	}
	w.append(all...)
	var recorded int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1`, tenant).Scan(&recorded))
	if recorded != len(all) {
		t.Errorf("%d events of %d are recorded", recorded, len(all))
	}
}
