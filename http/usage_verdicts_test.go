package http

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/entitlements"
)

// TestHandWrittenEncodersMatchReflection compares both encoders with
// encoding/json.
func TestHandWrittenEncodersMatchReflection(t *testing.T) {
	place := events.Position{Partition: 17, Number: 4711}
	nasty := "\x00\x1f\"\\/<é€😀\u2028\xff\xc0\xaf"
	list := []metering.EventVerdict{
		{Index: 0, EventID: "evt_1", Status: "accepted", Position: &place}, {Index: 1, EventID: nasty, Status: "duplicate", Position: &place},
		{Index: 2, EventID: "c", Status: "conflict", Code: "payload_conflict", Reason: nasty, Position: &place}, {Index: 3, Status: "rejected", Code: "x", Reason: "y", Pointer: "/events/3/" + nasty},
	}
	got := appendVerdicts(nil, countVerdicts(list), list)
	want := batchVerdict{Accepted: 1, Duplicates: 1, Conflicts: 1, Rejected: 1}
	for _, v := range list {
		e := eventVerdict{Index: v.Index, Status: v.Status, Code: v.Code, Reason: v.Reason, Pointer: v.Pointer}
		if v.EventID != "" {
			e.EventID = ptr(v.EventID)
		}
		if v.Position != nil {
			e.Position = v.Position.String()
		}
		want.Events = append(want.Events, e)
	}
	sameJSON(t, got, want)
	number := json.Number("123456789012345678901234567890")
	at := time.Date(2026, 6, 1, 2, 0, 0, 5000, time.FixedZone("x", 7200))
	for _, c := range []entitlements.Check{
		{Allowed: true, Feature: "sso", Type: "BOOLEAN", AsOf: place},
		{Feature: "x", Reason: "not_entitled", AsOf: place},
		{Allowed: true, Feature: "a", Type: "QUOTA", Limit: ptr(int64(5)), Used: &number, Held: ptr(json.Number("0")), Remaining: ptr(json.Number("5")), LimitBehavior: "HARD", ResetAt: ptr(at.UTC()), AsOf: place},
		{Feature: "a", Type: "METERED", Reason: "quota_exceeded", Used: &number, Held: ptr(json.Number("0")), LimitBehavior: "SOFT", AsOf: place},
	} {
		sameJSON(t, appendPosition(appendCheck(nil, &c), c.AsOf), c)
	}
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
