package meterplex

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

// The vectors, which the SDKs share.
func TestVectors(t *testing.T) {
	var v struct {
		EventIDs, EventIDsRefused []struct {
			Tenant, Feature, Resource string
			OccurredAt                time.Time
			ID                        string
		}
		Canonical []struct {
			Event     Event
			Canonical string
		}
		Refused []struct {
			Event json.RawMessage
			Code  string
		}
		Amounts, AmountsRefused []struct {
			Decimal string
			Scale   int
			Amount  int64
		}
		UsageIDs []struct{ ReservationID, EventID string }
	}
	text, err := os.ReadFile("../testdata/vectors.json")
	ok(t, err)
	ok(t, json.Unmarshal(text, &v))
	if len(v.EventIDs) < 6 || len(v.EventIDsRefused) < 6 || len(v.Canonical) < 11 || len(v.Refused) < 18 || len(v.Amounts) < 9 ||
		len(v.AmountsRefused) < 13 || len(v.UsageIDs) < 5 {
		t.Fatal("vectors are missing")
	}
	for _, c := range append(v.EventIDs, v.EventIDsRefused...) {
		if id, err := EventID(c.Tenant, c.Feature, c.Resource, c.OccurredAt); id != c.ID || (err == nil) != (c.ID != "") {
			t.Errorf("%+v: %s %v", c, id, err)
		}
	}
	for _, c := range v.Canonical {
		if got, err := c.Event.Canonical(); string(got) != c.Canonical {
			t.Errorf("%s %v\nwant %s", got, err, c.Canonical)
		}
		again := Event{}
		ok(t, json.Unmarshal([]byte(c.Canonical), &again))
		if got, err := again.Canonical(); string(got) != c.Canonical {
			t.Errorf("again: %s %v\nwant %s", got, err, c.Canonical)
		}
	}
	for _, c := range v.Refused {
		var e Event
		err := json.Unmarshal(c.Event, &e)
		if err == nil {
			_, err = e.Canonical()
		}
		if code(err) != c.Code {
			t.Errorf("%s: %v, want %s", c.Event, err, c.Code)
		}
	}
	for _, c := range append(v.Amounts, v.AmountsRefused...) {
		if n, err := Amount(c.Decimal, "kg", c.Scale); n != c.Amount || (err == nil) != (c.Amount != 0) ||
			err != nil && !strings.Contains(err.Error(), "kg") {
			t.Errorf("%+v: %d %v", c, n, err)
		}
	}
	for _, c := range v.UsageIDs {
		if id := usageOf(c.ReservationID); id != c.EventID {
			t.Errorf("%s: %s, want %s", c.ReservationID, id, c.EventID)
		}
	}
}

func code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Metadata is kept exactly or refused.
func TestMetadataIsExact(t *testing.T) {
	type named string
	for want, value := range map[string]any{
		`1`: uint8(1), `"x"`: named("x"), `"2026-11-29T10:00:00Z"`: time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC),
		`9007199254740992`: int64(1 << 53),
		`{"b":[1,"<"]}`: struct {
			B []any `json:"b"`
		}{[]any{1, "<"}},
		`[1,2]`: []int{1, 2}, `{"a":"b"}`: map[string]string{"a": "b"}, `0`: math.Copysign(0, -1), `0.1`: 0.1, `1e+21`: 1e21,
		`100`: json.Number("1e2"),
	} {
		got, err := Event{EventID: "e", Feature: "f", Amount: 1, Timestamp: time.Unix(0, 0),
			Metadata: map[string]any{"v": value}}.Canonical()
		if !strings.Contains(string(got), `"metadata":{"v":`+want+`}`) {
			t.Errorf("%v: %s %v, want %s", value, got, err, want)
		}
	}
	for _, value := range []any{int64(1<<53 + 1), uint64(math.MaxUint64), math.NaN(), math.Inf(1), json.Number("0.10000000000000000001"),
		json.Number("1e400"), json.Number("1e-400"),
		json.Number("x"), "\xff", "a\x00", map[string]any{"\xff": 1}, make(chan int), []any{[]any{[]any{[]any{[]any{}}}}}} {
		_, err := Event{EventID: "e", Feature: "f", Amount: 1, Timestamp: time.Unix(0, 0), Metadata: map[string]any{"v": value}}.Canonical()
		if code(err) != "metadata_invalid" {
			t.Errorf("%v: %v", value, err)
		}
	}
}

func TestDefaultsAreFixedOnce(t *testing.T) {
	e := Event{Feature: "f", Amount: 1}.withDefaults()
	if len(e.EventID) != 36 || e.EventID[14] != '7' || !strings.ContainsRune("89ab", rune(e.EventID[19])) || e.Timestamp.IsZero() ||
		e.Timestamp.Nanosecond()%1000 != 0 ||
		time.Since(e.Timestamp) > time.Minute || e.EventID == newID() {
		t.Errorf("%+v", e)
	}
	at := time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 3600))
	if e := (Event{EventID: "x", Timestamp: at}).withDefaults(); e.EventID != "x" ||
		e.Timestamp.Format(time.RFC3339Nano) != "2026-12-31T22:59:59.999999Z" {
		t.Errorf("%+v", e)
	}
}
