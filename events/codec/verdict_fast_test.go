package codec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

func sampleVerdict() events.Validated {
	return events.Validated{
		RawPosition: 4711, EventID: "evt_1", Feature: "api_calls", Amount: 5, Count: 1, Timestamp: time.Date(2026, 5, 1, 12, 0, 0, 123456000, time.UTC),
		ValidatedSubscriptionID: uuid.MustParse("01890000-0000-7000-8000-000000000001"), FeatureType: "METERED", PeriodKey: "2026-05",
	}
}

// The fast reader may refuse input that the general one accepts, but must never give a
// different result, and it must accept the validator's output.
func FuzzVerdict(f *testing.F) {
	body, _ := json.Marshal(sampleVerdict())
	f.Add(body)
	f.Add([]byte(strings.Replace(string(body), "evt_1", `e\"1`, 1)))
	f.Add([]byte(strings.Replace(string(body), `"amount":5`, `"amount":05`, 1)))
	f.Add([]byte(strings.Replace(string(body), "Z", "+02:00", 1)))
	f.Fuzz(func(t *testing.T, body []byte) {
		fast, ok := parseValidated(&events.Envelope{Payload: body})
		if !ok {
			return
		}
		var slow events.Validated
		if err := json.Unmarshal(body, &slow); err != nil {
			t.Fatalf("took %q, which is %v", body, err)
		}
		if !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%q is %+v, not %+v", body, slow, fast)
		}
	})
}

func TestVerdictsAreReadFast(t *testing.T) {
	for _, id := range []string{"evt_1", "!~", strings.Repeat("x", 255)} {
		v := sampleVerdict()
		v.EventID = id
		body, _ := json.Marshal(v)
		if got, ok := parseValidated(&events.Envelope{Payload: body}); !ok || got != v {
			t.Errorf("%s: %v %+v", body, ok, got)
		}
	}
}

func BenchmarkVerdictOf(b *testing.B) {
	body, _ := json.Marshal(sampleVerdict())
	e := events.Envelope{Subject: events.UsageValidated, Payload: body}
	for b.Loop() {
		if _, err := VerdictOf(&e); err != nil {
			b.Fatal(err)
		}
	}
}
