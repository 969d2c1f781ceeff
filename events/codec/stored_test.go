package codec

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// rowVerdicts are verdicts in each form; short is set for those with a short body.
func rowVerdicts() map[string]struct {
	events.Validated
	short bool
} {
	list := map[string]struct {
		events.Validated
		short bool
	}{}
	add := func(name string, short bool, change func(*events.Validated)) {
		v := sampleVerdict()
		change(&v)
		list[name] = struct {
			events.Validated
			short bool
		}{v, short}
	}
	add("a verdict", true, func(*events.Validated) {})
	add("signs", true, func(v *events.Validated) { v.EventID, v.Feature = `<"\é`, "a&b" })
	add("a count of two", false, func(v *events.Validated) { v.Count = 2 })
	add("nanoseconds", false, func(v *events.Validated) { v.Timestamp = v.Timestamp.Add(time.Nanosecond) })
	add("a negative amount", true, func(v *events.Validated) { v.Amount = -5 })
	add("a grant", true, func(v *events.Validated) { v.Grant = 12 })
	add("the grant before all", true, func(v *events.Validated) { v.Grant = events.GrantBefore })
	add("a correction with a grant", true, func(v *events.Validated) { corrected(events.TypeCorrection, 0)(v); v.Grant = 12 })
	add("a retraction with a grant", true, func(v *events.Validated) { corrected(events.TypeRetraction, -1)(v); v.Grant = -1 })
	add("a correction", true, corrected(events.TypeCorrection, 0))
	add("a retraction", true, corrected(events.TypeRetraction, -1))
	add("a retraction of none", true, corrected(events.TypeRetraction, 0))
	add("a correction of one", true, corrected(events.TypeCorrection, -1))
	add("a correction that counts", true, corrected(events.TypeCorrection, 1))
	add("a correction without a target", false, func(v *events.Validated) { v.Count = 0 })
	add("admitted usage", true, func(v *events.Validated) { v.Admitted = true })
	add("admitted usage with a grant", true, func(v *events.Validated) { v.Admitted, v.Grant = true, 12 })
	add("late usage", true, func(v *events.Validated) { v.Late = &events.Late{Snapshot: 3, Kind: events.AdjustmentLateUsage} })
	add("late admitted usage", true, func(v *events.Validated) {
		v.Admitted, v.Grant, v.Late = true, events.GrantBefore, &events.Late{Snapshot: 1, Kind: events.AdjustmentRetry}
	})
	add("a late correction", true, func(v *events.Validated) {
		corrected(events.TypeCorrection, 0)(v)
		v.Late = &events.Late{Snapshot: 1, Kind: events.AdjustmentCorrection}
	})
	return list
}

// corrected makes a verdict one on a correction or a retraction.
func corrected(kind string, count int64) func(*events.Validated) {
	return func(v *events.Validated) {
		v.Amount, v.Count = -3, count
		v.CorrectedUsage = &events.CorrectedUsage{Kind: kind, TargetPosition: 7, TargetEventID: `a,"]`, Before: 10, After: 7}
	}
}

// checkRow checks that a verdict, and its payload, are read from its row as they were written.
func checkRow(t *testing.T, v *events.Validated) (short bool) {
	t.Helper()
	e := events.Envelope{Subject: events.UsageValidated, DedupeKey: events.KeyValidated(v.RawPosition), OccurredAt: v.Timestamp, Payload: VerdictBody(v)}
	payload, err := json.Marshal(v)
	if err != nil || !json.Valid(e.Payload) {
		t.Fatalf("%v: no JSON: %s", err, e.Payload)
	}
	if got := WholePayload(e.Subject, e.DedupeKey, e.OccurredAt, e.Payload); string(got) != string(payload) {
		t.Fatalf("%s\ncame back as %s", payload, got)
	}
	whole, err := VerdictOf(&events.Envelope{Subject: e.Subject, Payload: payload})
	of, err2 := VerdictOf(&e)
	if err != nil || err2 != nil || !reflect.DeepEqual(whole, of) {
		t.Fatalf("%v %v\nof the payload %+v\nof the body    %+v", err, err2, whole, of)
	}
	if e.Payload[0] != '[' {
		return false
	}
	escaped := func(c byte) bool { return c == '\\' || c < ' ' || c > '~' }
	if _, ok := parseBody(&e); !ok && !slices.ContainsFunc(e.Payload, escaped) {
		t.Fatalf("left to the general decoder: %s", e.Payload)
	}
	return true
}

// A payload read from the log equals that of the verdict, byte for byte.
func TestVerdictsAreReadAsTheyWereWritten(t *testing.T) {
	for name, c := range rowVerdicts() {
		t.Run(name, func(t *testing.T) {
			if short := checkRow(t, &c.Validated); short != c.short {
				t.Errorf("in short %v: %s", short, VerdictBody(&c.Validated))
			}
		})
	}
}

// The payload of usage is made of its short body, key and time.
func TestUsageIsReadAsItWasWritten(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 250000000, time.UTC)
	const rest = `,"timestamp":"2026-05-01T12:00:00.25Z","type":"usage"}`
	for _, c := range []struct{ id, body, payload string }{
		{"a", `[1,"f"]`, `{"amount":1,"eventId":"a","feature":"f"` + rest},
		{"a", `[-1,"f",{"a":"}\"],","b":[{}],"é":1.5e-7}]`, `{"amount":-1,"eventId":"a","feature":"f","metadata":{"a":"}\"],","b":[{}],` +
			`"é":1.5e-7}` + rest},
		{"a", `[1,"f",null,"//x/\"y"]`, `{"amount":1,"eventId":"a","feature":"f","source":"//x/\"y"` + rest},
		{"é€😀", `[1,"f",{"a":null},"//x"]`, `{"amount":1,"eventId":"é€😀","feature":"f","metadata":{"a":null},"source":"//x"` + rest},
		{`a"b`, `{"amount":1,"eventId":"a\"b","feature":"f"` + rest, `{"amount":1,"eventId":"a\"b","feature":"f"` + rest},
	} {
		if got := WholePayload(events.UsageRecorded, events.KeyUsage(c.id), at, []byte(c.body)); string(got) != c.payload {
			t.Errorf("%s\nis %s\nnot %s", c.body, got, c.payload)
		}
	}
}

// Any body in the log can be read.
func FuzzWholePayload(f *testing.F) {
	f.Add(int16(1), "u/", []byte(`[]`))
	f.Add(int16(2), "v/x", []byte(`[1,"f","e","s","t","p"]`))
	f.Add(int16(2), "v/7", []byte(`[1,"f","e","01890000-0000-7000-8000-000000000001","t",0,-1,{"admitted":true},"p"]`))
	f.Add(int16(2), "", []byte(`[`))
	f.Fuzz(func(t *testing.T, subject int16, key string, body []byte) {
		got := WholePayload(events.Subject(subject), key, time.Time{}, body)
		if len(body) > 0 && body[0] != '[' && string(got) != string(body) {
			t.Fatalf("%q became %q", body, got)
		}
		_, _ = VerdictOf(&events.Envelope{Subject: events.Subject(subject), DedupeKey: key, Payload: body})
	})
}

// The hash that the database computes itself is not stored; all others are.
func TestHashesOfTheFirstVersionAreNotKept(t *testing.T) {
	usage := events.Pending{Subject: events.UsageRecorded, DedupeKey: "u/a", Payload: []byte(`[1,"f"]`), Canonical: 1}
	p, sum := usage, sha256.Sum256(PayloadOf(&usage))
	if KeptHash(&p) != nil || !bytes.Equal(PayloadHash(&p), append([]byte{1}, sum[:]...)) {
		t.Errorf("kept %x of %x", KeptHash(&p), PayloadHash(&p))
	}
	for name, change := range map[string]func(*events.Pending){
		"another version": func(p *events.Pending) { p.Canonical = 2 },
		"another subject": func(p *events.Pending) { p.Subject, p.Payload = events.UsageCorrected, PayloadOf(p) },
	} {
		p := usage
		if change(&p); !bytes.Equal(KeptHash(&p), append([]byte{p.Canonical}, sum[:]...)) {
			t.Errorf("%s: %x", name, KeptHash(&p))
		}
	}
	if p.Canonical = 0; KeptHash(&p) != nil || PayloadHash(&p) != nil {
		t.Error("what is not compared has a hash")
	}
}
