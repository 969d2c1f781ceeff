package entitlements

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/entitlements"
)

// TestChecksAreEncodedAsByReflection compares the encoder of checks with encoding/json.
func TestChecksAreEncodedAsByReflection(t *testing.T) {
	position := events.Position{Partition: 17, Number: 4711}
	number := json.Number("123456789012345678901234567890")
	at := time.Date(2026, 6, 1, 2, 0, 0, 5000, time.FixedZone("x", 7200))
	for _, c := range []entitlements.Check{
		{Allowed: true, Feature: "sso", Type: "BOOLEAN", AsOf: position},
		{Feature: "x", Reason: "not_entitled", AsOf: position},
		{Allowed: true, Feature: "a", Type: "QUOTA", Limit: new(int64(5)), Used: &number, Held: new(json.Number("0")),
			Remaining: new(json.Number("5")), LimitBehavior: "HARD", ResetAt: new(at.UTC()), AsOf: position},
		{Feature: "a", Type: "METERED", Reason: "quota_exceeded", Used: &number, Held: new(json.Number("0")), LimitBehavior: "SOFT",
			AsOf: position},
	} {
		asByReflection(t, appendPosition(appendCheck(nil, &c), c.AsOf), c)
	}
}

func asByReflection(t *testing.T, got []byte, want any) {
	t.Helper()
	text, err := json.Marshal(want)
	must.OK(t, err)
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal(text, &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) || !utf8.Valid(got) {
		t.Errorf("written by hand: %s\nby reflection: %s", got, text)
	}
}
