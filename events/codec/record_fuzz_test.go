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

// FuzzFromRecord: an event read from any accepted record is written as a record that
// reads the same.
func FuzzFromRecord(f *testing.F) {
	e := sample()
	value, _ := AppendWire(nil, &e)
	add := func(value, position, previous, epoch string) {
		f.Add(uint8(e.Subject.Topic()), e.Position.Partition, []byte(value), position, previous, epoch, false)
	}
	text := string(value)
	add(text, "17-4711", "4709", "2")
	add(strings.Replace(text, `"payload":{"amount":1},`, "", 1), "17-4711", "4709", "2")
	add(strings.Replace(text, `{"amount":1}`, "null", 1), "17-4711", "4709", "2")
	add(strings.Replace(text, "2026-05-01T01:02:03.000004Z", "9999-12-31T23:59:59-14:00", 1), "17-4711", "4709", "2")
	add(strings.Replace(text, "2026-05-01T01:02:03.000004Z", "0000-01-01T00:00:00+14:00", 1), "17-4711", "4709", "2")
	add(strings.Replace(text, "2026-05-01T01:02:03.000004Z", "2026-05-01T01:02:03.0000045+02:00", 1), "17-4711", "4709", "2")
	add(strings.Replace(text, e.EventID.String(), uuid.Nil.String(), 1), "17-4711", "4709", "2")
	add(strings.Replace(text, e.TenantID.String(), strings.ToUpper(e.TenantID.String()), 1), "17-4711", "4709", "2")
	add(strings.Replace(text, e.TenantID.String(), "platform", 1), "17-4711", "4709", "2")
	add(strings.Replace(text, `"dataResidency":"unspecified"`, `"dataResidency":"eu-central-1"`, 1), "17-4711", "4709", "2")
	add(strings.Replace(text, `"dataResidency":"unspecified"`, `"dataResidency":""`, 1), "17-4711", "4709", "2")
	add(strings.Replace(text, `"dataResidency":"unspecified",`, "", 1), "17-4711", "4709", "2")
	add(strings.Replace(text, `"schemaUri":"/api`, `"schemaUri":"/elsewhere`, 1), "17-4711", "4709", "2")
	for _, header := range []string{"", "+1", "-1", "01", "9223372036854775808", "4711", "\x00", "1e3"} {
		add(text, "17-4711", header, "2")
		add(text, "17-4711", "4709", header)
		add(text, header, "4709", "2")
		add(text, "17-"+header, "4709", "2")
	}
	f.Add(uint8(0), int16(-1), []byte{}, "17-4711", "0", "0", true)
	f.Fuzz(func(t *testing.T, topic uint8, partition int16, value []byte, position, previous, epoch string, withheld bool) {
		r := events.Record{Topic: events.Topic(topic), Partition: partition, Value: value, Headers: []events.Header{
			{Key: events.HeaderPosition, Value: []byte(position)}, {Key: events.HeaderPrevious, Value: []byte(previous)}, {Key: events.HeaderEpoch, Value: []byte(epoch)}}}
		if withheld {
			r.Headers = append(r.Headers, events.Header{Key: events.HeaderWithheld, Value: []byte("1")})
		}
		place, err := PlaceOf(&r)
		if err == nil && (place.Position.Partition != partition || place.Previous < 0 || place.Previous >= place.Position.Number || place.Epoch < 0) {
			t.Fatalf("%+v", place)
		}
		e, err := FromRecord(&r)
		if err != nil && strings.ContainsRune(err.Error(), 0) {
			t.Fatalf("why it is none cannot be stored: %q", err)
		}
		if err != nil || withheld {
			return
		}
		written := e
		written.Vocabulary = events.CurrentVocabulary()
		again, err := ToRecord(&written)
		if err != nil {
			t.Fatalf("%q is %+v, which cannot be written: %v", value, e, err)
		}
		got, err := FromRecord(&again)
		if err != nil || !sameEnvelope(got, e) {
			t.Fatalf("%q is read\n%+v, written %q and read\n%+v, %v", value, e, again.Value, got, err)
		}
		if !json.Valid(again.Value) || e.EventID == uuid.Nil || again.Topic != r.Topic {
			t.Fatalf("%q is written %q", value, again.Value)
		}
	})
}

// sameEnvelope compares times as instants, without their zones.
func sameEnvelope(a, b events.Envelope) bool {
	same := a.OccurredAt.Equal(b.OccurredAt) && a.RecordedAt.Equal(b.RecordedAt)
	a.OccurredAt, a.RecordedAt, b.OccurredAt, b.RecordedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return same && reflect.DeepEqual(a, b)
}
