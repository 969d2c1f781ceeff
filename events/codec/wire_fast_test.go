package codec

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

func TestTheFastReaderAcceptsWrittenEnvelopes(t *testing.T) {
	for name, change := range map[string]func(*events.Envelope){
		"usual":        func(*events.Envelope) {},
		"no trace":     func(e *events.Envelope) { e.CorrelationID = uuid.Nil },
		"a cause":      func(e *events.Envelope) { e.CausationID = e.TenantID },
		"a residency":  func(e *events.Envelope) { e.Residency = "eu-central-1" },
		"the platform": func(e *events.Envelope) { e.TenantID, e.Position.Partition = events.Platform, 0 },
		"a nasty value": func(e *events.Envelope) {
			e.Payload = json.RawMessage(`{"a":",\"metadata\":{\"retentionClass\":\"","b":[{}]}`)
		},
	} {
		e := sample()
		e.Replay, e.Actor.ID, e.DedupeKey = "", "k", "u/a"
		change(&e)
		value, err := AppendWire(nil, &e)
		must.OK(t, err)
		w, ok := parseCanonical(value)
		if !ok {
			t.Errorf("%s: left to the general decoder: %s", name, value)
		}
		var general wire
		if err := json.Unmarshal(value, &general); err != nil || !reflect.DeepEqual(w, general) {
			t.Errorf("%s: %v\nfast    %+v\ngeneral %+v", name, err, w, general)
		}
	}
}

func FuzzParseWire(f *testing.F) {
	e := sample()
	value, _ := AppendWire(nil, &e)
	f.Add(value)
	e.Replay, e.Actor.ID, e.DedupeKey = "", "k", "u/a"
	value, _ = AppendWire(nil, &e)
	f.Add(value)
	f.Fuzz(func(t *testing.T, b []byte) {
		w, ok := parseCanonical(b)
		if !ok {
			return
		}
		var general wire
		if err := json.Unmarshal(b, &general); err != nil || !reflect.DeepEqual(w, general) {
			t.Fatalf("another opinion than the general decoder's: %v\n%q", err, b)
		}
	})
}
