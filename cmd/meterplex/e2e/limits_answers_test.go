package e2e

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// sameAnswer reports whether a granted request that was sent again got its first answer: byte for byte, except for usage events, which
// are duplicates at their first position, and for holds, whose state is the present one.
func sameAnswer(t testing.TB, first, again *request) bool {
	t.Helper()
	switch {
	case strings.HasSuffix(first.path, "/usage/events"):
		return again.status == first.status && again.outcome(t).Events[0].Status == "duplicate" && again.outcome(t).Position == first.outcome(t).Position
	case strings.HasSuffix(first.path, "/reservations"):
		return again.status == http.StatusOK && (bytes.Equal(first.answer, again.answer) || sameHold(t, first, again))
	}
	return again.status == http.StatusOK && first.status == http.StatusOK && bytes.Equal(first.answer, again.answer)
}

// sameHold reports whether two answers about a hold differ only by the state of the reservation, which has ended since the first.
func sameHold(t testing.TB, first, again *request) bool {
	t.Helper()
	if first.outcome(t).State != "HELD" || again.outcome(t).State == "HELD" {
		return false
	}
	members := func(r *request) (all map[string]json.RawMessage) {
		if err := json.Unmarshal(r.answer, &all); err != nil {
			t.Errorf("%v: %s", err, r.answer)
		}
		for _, present := range []string{"state", "released"} {
			delete(all, present)
		}
		return all
	}
	return maps.EqualFunc(members(first), members(again), func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}
