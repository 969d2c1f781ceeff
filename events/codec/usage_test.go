package codec

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

const sampleUsage = `{"amount":5,"eventId":"abcdefghijkl-0000000001","feature":"api_calls","metadata":{"region":"eu-1"},` +
	`"timestamp":"2026-05-01T12:00:00.123456Z","type":"usage"}`

// The fast reader may refuse input that the general one accepts, but must never give a
// different result.
func FuzzUsage(f *testing.F) {
	f.Add([]byte(sampleUsage))
	f.Add(
		[]byte(
			`{"amount":-5,"eventId":"a","feature":"f","metadata":{"a":[1,"\u0041",{"b":null}]},"source":"//x","timestamp":"2026-05-01T12:00:00Z",` +
				`"type":"usage"}`))
	f.Add([]byte(`{"amount":5,"eventId":"a","feature":"f","metadata":null,"timestamp":"2026-05-01T12:00:00+01:00","type":"usage"}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		fast, ok := parseUsage(payload)
		if !ok || !json.Valid(payload) { // the log has no other
			return
		}
		var slow events.Usage
		if err := json.Unmarshal(payload, &slow); err != nil {
			t.Fatalf("took %q, which is %v", payload, err)
		}
		if !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%q is %+v, not %+v", payload, slow, fast)
		}
	})
}

// The fast reader of corrections never gives another result than the general one, and accepts each correction in canonical form.
func FuzzCorrection(f *testing.F) {
	for _, body := range corrections {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		fast, ok := parseCorrection(body)
		if !ok || !json.Valid(body) {
			return
		}
		var slow events.Correction
		if err := json.Unmarshal(body, &slow); err != nil || !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%q is %+v (%v), not %+v", body, slow, err, fast)
		}
	})
}

var corrections = []string{
	`{"amount":7,"correctionRef":"order-1","eventId":"fix-1","feature":"calls","timestamp":"2026-05-04T12:00:00Z","type":"correction"}`,
	`{"amount":0,"correctionRef":"o","eventId":"f","feature":"calls","metadata":{"a":"b"},"source":"s",` +
		`"timestamp":"2026-05-04T12:00:00.5Z","type":"correction"}`,
	`{"correctionRef":"order-1","eventId":"undo-1","feature":"calls","timestamp":"2026-05-04T12:00:00Z","type":"retraction"}`,
}

func TestCorrectionsAreReadFast(t *testing.T) {
	for _, body := range corrections {
		var slow events.Correction
		must.OK(t, json.Unmarshal([]byte(body), &slow))
		if fast, ok := parseCorrection([]byte(body)); !ok || !reflect.DeepEqual(fast, slow) {
			t.Errorf("%s is %v %+v", body, ok, fast)
		}
	}
}

func TestUsageIsReadFast(t *testing.T) {
	for _, payload := range []string{
		sampleUsage,
		`{"amount":-5,"eventId":"!~","feature":"f","timestamp":"2026-05-01T12:00:00Z","type":"usage"}`,
		`{"amount":5,"eventId":"a","feature":"f","source":"//x","timestamp":"2026-05-01T12:00:00Z","type":"usage"}`,
		`{"amount":5,"eventId":"a","feature":"f","metadata":{"é":[1.5,"\n",{}]},"source":"//x","timestamp":"2026-05-01T12:00:00Z",` +
			`"type":"usage"}`,
	} {
		if _, ok := parseUsage([]byte(payload)); !ok {
			t.Errorf("left to the general decoder: %s", payload)
		}
	}
}
