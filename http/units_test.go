package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/entitlements"
)

func TestCursorsCarryTheirPlaceAndNothingElse(t *testing.T) {
	l := list{"usage events", "tenant", "feature"}
	text := *l.next(3, "17-4711")
	if generation, after, err := l.open(text); err != nil || generation != 3 || after != "17-4711" {
		t.Errorf("%d %q %v", generation, after, err)
	}
	if _, _, err := (list{"usage events", "tenant", "other"}).open(text); err == nil {
		t.Error("a cursor of another list is taken")
	}
	for i := range text {
		for _, c := range []byte{'A', 'x', '=', '\n'} {
			if changed := text[:i] + string(c) + text[i+1:]; changed != text {
				if _, _, err := l.open(changed); err == nil {
					t.Errorf("changed at %d to %q, and taken", i, c)
				}
			}
		}
	}
	var p *Problem
	if _, _, err := l.open("e30"); !errors.As(err, &p) || p.Code != "cursor_invalid" {
		t.Errorf("%v", err)
	}
}

func TestPreferenceForWaiting(t *testing.T) {
	for prefer, want := range map[string]time.Duration{
		"": 0, "wait=10": 10 * time.Second, "WAIT=1": time.Second, "respond-async, wait=5": 5 * time.Second, "wait = 7": 7 * time.Second, `wait="3"`: 3 * time.Second,
		"wait=3; foo=bar": 3 * time.Second, "wait=30": maxWait, "wait=31": maxWait, "wait=2147483647": maxWait, "wait=99999999999999999999": 0, "wait=-1": 0, "wait": 0, "wait=1.5": 0, "waiting=5": 0,
	} {
		if got := preferredWait(prefer); got != want {
			t.Errorf("%q: %s instead of %s", prefer, got, want)
		}
	}
}

func TestEntityTagsCompareWeakly(t *testing.T) {
	tag := entityTag([]byte(`{"allowed":true`))
	if !strings.HasPrefix(tag, `W/"`) || tag == entityTag([]byte(`{"allowed":false`)) {
		t.Errorf("%s", tag)
	}
	for header, want := range map[string]bool{tag: true, tag[2:]: true, "*": true, `"x", ` + tag: true, `"x"`: false, "": false, tag + "x": false} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("If-None-Match", header)
		if unchanged(r, tag) != want {
			t.Errorf("%q: %v", header, !want)
		}
	}
}

// TestHandWrittenAnswersAreWhatReflectionWrites compares both encoders with
// encoding/json.
func TestHandWrittenAnswersAreWhatReflectionWrites(t *testing.T) {
	place := events.Position{Partition: 17, Number: 4711}
	nasty := "\x00\x1f\"\\/<é€😀\u2028\xff\xc0\xaf"
	list := []commands.EventVerdict{
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
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal(text, &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) || !utf8.Valid(got) {
		t.Errorf("written by hand: %s\nby reflection: %s", got, text)
	}
}
