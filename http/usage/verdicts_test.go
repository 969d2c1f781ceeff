package usage

import (
	"encoding/json"
	"fmt"
	"testing"
	"unicode/utf8"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/internal/must"
)

// TestVerdictsAreEncodedAsByReflection compares the encoder of verdicts with encoding/json.
func TestVerdictsAreEncodedAsByReflection(t *testing.T) {
	position := events.Position{Partition: 17, Number: 4711}
	nasty := "\x00\x1f\"\\/<é€😀\u2028\xff\xc0\xaf"
	list := []metering.EventVerdict{
		{Index: 0, EventID: "evt_1", Status: "accepted", Position: &position}, {Index: 1, EventID: nasty, Status: "duplicate",
			Position: &position},
		{Index: 2, EventID: "c", Status: "conflict", Code: "payload_conflict", Reason: nasty, Position: &position},
		{Index: 3, Status: "rejected", Code: "x", Reason: "y", Pointer: "/events/3/" + nasty},
	}
	got := appendVerdicts(nil, api.CountsOf(list), list)
	want := batchVerdict{Accepted: 1, Duplicates: 1, Conflicts: 1, Rejected: 1}
	for _, v := range list {
		e := eventVerdict{Index: v.Index, Status: v.Status, Code: v.Code, Reason: v.Reason, Pointer: v.Pointer}
		if v.EventID != "" {
			e.EventID = new(v.EventID)
		}
		if v.Position != nil {
			e.Position = v.Position.String()
		}
		want.Events = append(want.Events, e)
	}
	sameJSON(t, got, want)
}

func sameJSON(t *testing.T, got []byte, want any) {
	t.Helper()
	text, err := json.Marshal(want)
	must.OK(t, err)
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal(text, &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) || !utf8.Valid(got) {
		t.Errorf("written by hand: %s\nby reflection: %s", got, text)
	}
}
