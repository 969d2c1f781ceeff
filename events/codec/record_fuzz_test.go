package codec

import (
	"testing"

	"github.com/meterplex/meterplex/events"
)

// FuzzPositionOf: a position that is read from any headers is one that an event can have.
func FuzzPositionOf(f *testing.F) {
	add := func(position, previous, epoch string) { f.Add(int16(17), position, previous, epoch, "", "") }
	add("17-4711", "4709", "2")
	for _, header := range []string{"", "+1", "-1", "01", "9223372036854775808", "4711", "\x00", "1e3"} {
		add("17-4711", header, "2")
		add("17-4711", "4709", header)
		add(header, "4709", "2")
		add("17-"+header, "4709", "2")
	}
	f.Fuzz(func(t *testing.T, partition int16, position, previous, epoch, id, log string) {
		r := events.Record{Partition: partition, Headers: []events.Header{
			{Key: events.HeaderPosition, Value: []byte(position)}, {Key: events.HeaderPrevious, Value: []byte(previous)},
			{Key: events.HeaderEpoch, Value: []byte(epoch)},
			{Key: events.HeaderEventID, Value: []byte(id)}, {Key: events.HeaderLog, Value: []byte(log)}}}
		at, err := PositionOf(&r)
		if err == nil && (at.Position.Partition != partition || at.Previous < 0 || at.Previous >= at.Position.Number ||
			at.Epoch < 0) {
			t.Fatalf("%+v", at)
		}
	})
}
