package codec

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// storedEvents are events of both subjects, in the form that the service writes and in
// other forms; short is set for those with a short body.
func storedEvents() map[string]struct {
	p     events.Pending
	short bool
} {
	at := time.Date(2026, 5, 1, 12, 0, 0, 250000000, time.UTC)
	usage := func(id, payload string) events.Pending {
		return events.Pending{Subject: events.UsageRecorded, DedupeKey: events.KeyUsage(id), OccurredAt: at,
			Payload: json.RawMessage(payload), Canonical: 1}
	}
	verdict := func(change func(*events.Validated)) events.Pending {
		v := sampleVerdict()
		v.Timestamp = at
		change(&v)
		body, _ := json.Marshal(v)
		return events.Pending{Subject: events.UsageValidated, DedupeKey: events.KeyValidated(4711), OccurredAt: at, Payload: body}
	}
	of := func(p events.Pending, short bool) struct {
		p     events.Pending
		short bool
	} {
		return struct {
			p     events.Pending
			short bool
		}{p, short}
	}
	const tail = `,"timestamp":"2026-05-01T12:00:00.25Z","type":"usage"}`
	odd := usage("a", `{"amount":1,"eventId":"a","feature":"f"`+tail)
	odd.Subject = events.UsageRetried
	late := usage("a", `{"amount":1,"eventId":"a","feature":"f"`+tail)
	late.OccurredAt = at.Add(time.Microsecond)
	return map[string]struct {
		p     events.Pending
		short bool
	}{
		"usage": of(usage("a", `{"amount":1,"eventId":"a","feature":"f"`+tail), true),
		"usage with metadata": of(usage("a",
			`{"amount":-1,"eventId":"a","feature":"f","metadata":{"a":"}\"],","b":[{}],"é":1.5e-7}`+tail), true),
		"usage with a source": of(usage("a", `{"amount":1,"eventId":"a","feature":"f","source":"//x/\"y"`+tail), true),
		"usage with both": of(usage("a", `{"amount":1,"eventId":"a","feature":"f","metadata":{"a":null},"source":"//x"`+tail),
			true),
		"an id beyond ASCII":    of(usage("é€😀", `{"amount":1,"eventId":"é€😀","feature":"f"`+tail), true),
		"an id with a quote":    of(usage(`a"b`, `{"amount":1,"eventId":"a\"b","feature":"f"`+tail), false),
		"null metadata":         of(usage("a", `{"amount":1,"eventId":"a","feature":"f","metadata":null`+tail), false),
		"another key":           of(usage("b", `{"amount":1,"eventId":"a","feature":"f"`+tail), false),
		"another time":          of(late, false),
		"another subject":       of(odd, false),
		"a member nobody knows": of(usage("a", `{"amount":1,"eventId":"a","feature":"f"`+tail[:len(tail)-1]+`,"x":1}`), false),
		"another order":         of(usage("a", `{"eventId":"a","amount":1,"feature":"f"`+tail), false),
		"blanks":                of(usage("a", `{"amount": 1,"eventId":"a","feature":"f"`+tail), true), // a value is kept unchanged
		"an empty object":       of(usage("a", `{}`), false),
		"a verdict":             of(verdict(func(*events.Validated) {}), true),
		"a verdict with signs":  of(verdict(func(v *events.Validated) { v.EventID, v.Feature = `<"\é`, "a&b" }), true),
		"a verdict of two":      of(verdict(func(v *events.Validated) { v.Count = 2 }), false),
		"a verdict elsewhere":   of(verdict(func(v *events.Validated) { v.RawPosition++ }), false),
		"a verdict then":        of(verdict(func(v *events.Validated) { v.Timestamp = at.Add(time.Nanosecond) }), false),
		"a negative amount":     of(verdict(func(v *events.Validated) { v.Amount = -5 }), true),
		"a grant":               of(verdict(func(v *events.Validated) { v.Grant = 12 }), true),
		"the grant before all":  of(verdict(func(v *events.Validated) { v.Grant = events.GrantBefore }), true),
		"a correction with a grant": of(verdict(func(v *events.Validated) { corrected(events.TypeCorrection, 0)(v); v.Grant = 12 }),
			true),
		"a retraction with a grant": of(verdict(func(v *events.Validated) { corrected(events.TypeRetraction, -1)(v); v.Grant = -1 }),
			true),
		"a correction":                  of(verdict(corrected(events.TypeCorrection, 0)), true),
		"a retraction":                  of(verdict(corrected(events.TypeRetraction, -1)), true),
		"a retraction of none":          of(verdict(corrected(events.TypeRetraction, 0)), false),
		"a correction of one":           of(verdict(corrected(events.TypeCorrection, -1)), false),
		"a correction that counts":      of(verdict(corrected(events.TypeCorrection, 1)), false),
		"a correction without a target": of(verdict(func(v *events.Validated) { v.Count = 0 }), false),
		"a late correction": of(verdict(func(v *events.Validated) {
			corrected(events.TypeCorrection, 0)(v)
			v.Late = &events.Late{Snapshot: 1, Kind: events.LateCorrection}
		}), false),
	}
}

// corrected makes a verdict one on a correction or a retraction.
func corrected(kind string, count int64) func(*events.Validated) {
	return func(v *events.Validated) {
		v.Amount, v.Count = -3, count
		v.CorrectedUsage = &events.CorrectedUsage{Kind: kind, TargetPosition: 7, TargetEventID: `a,"]`, Before: 10, After: 7}
	}
}

// A payload read from the log equals the appended one, byte for byte.
func TestBodiesAreReadAsTheyWereWritten(t *testing.T) {
	for name, c := range storedEvents() {
		p := c.p
		body := AppendBody([]byte("x"), &p)[1:]
		if short := body[0] == '['; short != c.short {
			t.Errorf("%s: in short %v: %s", name, short, body)
		}
		if !json.Valid(body) {
			t.Errorf("%s: no JSON: %s", name, body)
		}
		if got := WholePayload(p.Subject, p.DedupeKey, p.OccurredAt, body); string(got) != string(p.Payload) {
			t.Errorf("%s: %s\ncame back as %s", name, p.Payload, got)
		}
		if p.Subject != events.UsageValidated {
			continue
		}
		whole, err := VerdictOf(&events.Envelope{Subject: p.Subject, Payload: p.Payload})
		of, err2 := VerdictOf(&events.Envelope{Subject: p.Subject, Payload: body, DedupeKey: p.DedupeKey, OccurredAt: p.OccurredAt})
		if err != nil || err2 != nil || !reflect.DeepEqual(whole, of) {
			t.Errorf("%s: %v %v\nof the payload %+v\nof the body    %+v", name, err, err2, whole, of)
		}
	}
}

// FuzzBody: any payload, key and time are read back unchanged.
func FuzzBody(f *testing.F) {
	for _, c := range storedEvents() {
		f.Add(int16(c.p.Subject), c.p.DedupeKey, c.p.OccurredAt.UnixMicro(), []byte(c.p.Payload))
	}
	f.Fuzz(func(t *testing.T, subject int16, key string, at int64, payload []byte) {
		if len(payload) == 0 || payload[0] != '{' || !json.Valid(payload) || at < -62135596800_000_000 || at >= 253402300800_000_000 {
			return // every payload is an object
		}
		p := events.Pending{Subject: events.Subject(subject), DedupeKey: key, OccurredAt: time.UnixMicro(at), Payload: payload}
		body := AppendBody(nil, &p)
		if !json.Valid(body) {
			t.Fatalf("%q is no JSON", body)
		}
		if got := WholePayload(p.Subject, key, p.OccurredAt, body); string(got) != string(payload) {
			t.Fatalf("%q came back as %q by %q", payload, got, body)
		}
	})
}

// Any body in the log can be read.
func FuzzWholePayload(f *testing.F) {
	f.Add(int16(1), "u/", []byte(`[]`))
	f.Add(int16(2), "v/x", []byte(`[1,"f","e","s","t","p"]`))
	f.Add(int16(2), "v/7", []byte(`[1,"f","e","01890000-0000-7000-8000-000000000001","t",0,7,"x",1,2,"p"]`))
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
	p := storedEvents()["usage"].p
	sum := sha256.Sum256(p.Payload)
	if KeptHash(&p) != nil || !bytes.Equal(PayloadHash(&p), append([]byte{1}, sum[:]...)) {
		t.Errorf("kept %x of %x", KeptHash(&p), PayloadHash(&p))
	}
	for name, change := range map[string]func(*events.Pending){
		"another version": func(p *events.Pending) { p.Canonical = 2 },
		"another subject": func(p *events.Pending) { p.Subject = events.UsageRetried },
	} {
		p := storedEvents()["usage"].p
		if change(&p); !bytes.Equal(KeptHash(&p), append([]byte{p.Canonical}, sum[:]...)) {
			t.Errorf("%s: %x", name, KeptHash(&p))
		}
	}
	if p.Canonical = 0; KeptHash(&p) != nil || PayloadHash(&p) != nil {
		t.Error("what is not compared has a hash")
	}
}
