package codec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

func sampleVerdict() events.Validated {
	return events.Validated{
		RawPosition: 4711, EventID: "evt_1", Feature: "api_calls", Amount: 5, Count: 1,
		Timestamp:               time.Date(2026, 5, 1, 12, 0, 0, 123456000, time.UTC),
		ValidatedSubscriptionID: uuid.MustParse("01890000-0000-7000-8000-000000000001"), FeatureType: "METERED", PeriodKey: "2026-05",
	}
}

// The fast reader may refuse input that the general one accepts, but must never give a
// different result, and it must accept the validator's output.
func FuzzVerdict(f *testing.F) {
	body, _ := json.Marshal(sampleVerdict())
	f.Add(body)
	for _, v := range correctedVerdicts() {
		body, _ := json.Marshal(v)
		f.Add(body)
	}
	admitted, _ := json.Marshal(correctedVerdicts()[3])
	f.Add([]byte(strings.Replace(string(admitted), `,"admitted"`, `{"admitted"`, 1)))
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

// correctedVerdicts are verdicts with each of the optional members.
func correctedVerdicts() (list []events.Validated) {
	v := sampleVerdict()
	v.CorrectedUsage = &events.CorrectedUsage{Kind: events.TypeCorrection, TargetPosition: 7, TargetEventID: "evt_0", Before: 10, After: 7}
	list = append(list, v)
	v.Late = &events.Late{Snapshot: 2, Kind: events.AdjustmentCorrection}
	list = append(list, v)
	v.Admitted = true
	list = append(list, v)
	v.CorrectedUsage = nil
	list = append(list, v)
	v.Grant, v.Late, v.Admitted = 4711, nil, false
	list = append(list, v)
	v.CorrectedUsage = &events.CorrectedUsage{Kind: events.TypeRetraction, TargetPosition: 7, TargetEventID: "evt_0", Before: 10}
	v.Grant, v.Amount, v.Count = events.GrantBefore, -10, -1
	return append(list, v)
}

func TestVerdictsAreReadFast(t *testing.T) {
	for _, v := range correctedVerdicts() {
		body, _ := json.Marshal(v)
		if got, ok := parseValidated(&events.Envelope{Payload: body}); !ok || !reflect.DeepEqual(got, v) {
			t.Errorf("%s: %v %+v", body, ok, got)
		}
	}
	for _, id := range []string{"evt_1", "!~", strings.Repeat("x", 255)} {
		v := sampleVerdict()
		v.EventID = id
		body, _ := json.Marshal(v)
		if got, ok := parseValidated(&events.Envelope{Payload: body}); !ok || got != v {
			t.Errorf("%s: %v %+v", body, ok, got)
		}
	}
}

// A verdict is read from each form of its payload, and from no other event.
func TestVerdictsAreReadFromEachForm(t *testing.T) {
	v := sampleVerdict()
	body, _ := json.Marshal(v)
	again, _ := json.Marshal(events.Reaggregate{Validated: v})
	swapped := append(append([]byte(`{"periodKey":"2026-05",`), body[1:len(body)-len(`,"periodKey":"2026-05"}`)]...), '}')
	for _, e := range []events.Envelope{
		{Subject: events.UsageValidated, Payload: body}, {Subject: events.UsageValidated, Payload: swapped},
		{Subject: events.Reaggregated, Payload: again},
		{Subject: events.UsageValidated, DedupeKey: "v/4711", OccurredAt: v.Timestamp, Payload: VerdictBody(&v)},
	} {
		if got, err := VerdictOf(&e); got != v || err != nil {
			t.Errorf("%s is %+v, %v", e.Payload, got, err)
		}
	}
	for _, e := range []events.Envelope{{Subject: events.UsageValidated, Payload: []byte(`[`)}, {Subject: events.UsageRecorded, Payload: body},
		{Subject: events.Reaggregated}} {
		if got, err := VerdictOf(&e); err == nil {
			t.Errorf("%s of subject %d is %+v", e.Payload, e.Subject, got)
		}
	}
}

// FuzzWrittenVerdict: the payload of a verdict's row is as json.Marshal writes it. more chooses the other members.
func FuzzWrittenVerdict(f *testing.F) {
	f.Add("evt_1", "api_calls", int64(5), int64(1777636800123456), "2026-05", int64(0))
	f.Add("<é\"\x00\xff\u2028>", "&", int64(-5), int64(-1), "", int64(12))
	f.Add("evt_1", "api_calls", int64(-5), int64(1), "2026-05", int64(-1))
	f.Fuzz(func(t *testing.T, id, feature string, amount, at int64, period string, more int64) {
		v := sampleVerdict()
		v.EventID, v.Feature, v.Amount, v.Timestamp, v.PeriodKey = id, feature, amount, time.UnixMicro(at%(1<<53)).UTC(), period
		v.Admitted = more&1 != 0
		if more&2 != 0 {
			v.Late = &events.Late{Snapshot: int(int32(more)), Kind: id}
		}
		if more&4 != 0 {
			v.Count, v.CorrectedUsage = more, &events.CorrectedUsage{Kind: period, TargetPosition: at, TargetEventID: feature, Before: more}
		}
		if more&8 != 0 {
			v.Grant = amount
		}
		want, _ := json.Marshal(&v)
		if got := WholePayload(events.UsageValidated, events.KeyValidated(v.RawPosition), v.Timestamp, VerdictBody(&v)); string(got) != string(want) {
			t.Fatalf("%s\ninstead of %s", got, want)
		}
		if utf8.ValidString(id + feature + period) {
			checkRow(t, &v)
		}
	})
}
