package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// The same id with another payload is answered as a conflict, recorded with both hashes,
// listed and counted; the first payload stays.
func TestP4_ConflictsAreReported(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	x, other := tenants[0], tenants[1]
	first := event{"order/1", "api_calls", 5, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	first.Timestamp = time.Now().UTC().Truncate(time.Second)
	changed := first
	changed.Amount = 6
	position := w.ingest(i, x, "accepted", first)[0].Position
	for range 3 {
		v := w.ingest(i, x, "conflict", changed)[0]
		if v.Code != "payload_conflict" || v.Position != position {
			t.Errorf("the conflict is answered %+v; the first is at %s", v, position)
		}
	}
	w.ingest(i, x, "duplicate", first)
	// Another tenant may use the same id for another event.
	w.ingest(i, other, "accepted", changed)
	var list struct {
		Data []struct{ EventID, FirstPosition, FirstHash, ConflictHash, Position string }
	}
	w.ask(x.key, http.MethodGet, i, "/api/v1/usage/conflicts", nil, &list, http.StatusOK)
	if len(list.Data) != 1 {
		t.Fatalf("%d conflicts are listed, want 1: the same payload again is the same conflict", len(list.Data))
	}
	c := list.Data[0]
	if c.EventID != first.EventID || c.FirstPosition != position || c.FirstHash != canonical(first) ||
		c.ConflictHash != canonical(changed) {
		t.Errorf("the conflict is listed as %+v; the hashes are %s and %s", c, canonical(first), canonical(changed))
	}
	w.ask(other.key, http.MethodGet, i, "/api/v1/usage/conflicts", nil, &list, http.StatusOK)
	if len(list.Data) != 0 {
		t.Errorf("another tenant is shown %+v", list.Data)
	}
	if n := w.metric(i, "meterplex_payload_conflicts_total"); n != 3 {
		t.Errorf("%v conflicts are counted, want 3", n)
	}
	w.finish()
}

// canonical returns the hash of the event's RFC 8785 form, written by hand.
func canonical(e event) string {
	text := fmt.Sprintf(`{"amount":%d,"eventId":"%s","feature":"%s","timestamp":"%s","type":"usage"}`,
		e.Amount, e.EventID, e.Feature, e.Timestamp.UTC().Format("2006-01-02T15:04:05Z"))
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
