package codec

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// TestRecordsOfOneWriterAreThoseOfToRecord, also after a reader of one has appended to each of its members: their memory is shared, their
// bytes are not.
func TestRecordsOfOneWriterAreThoseOfToRecord(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var w RecordWriter
	var got, want []events.Record
	for n := range 400 {
		e := sample()
		e.Position.Number, e.Previous = int64(n+1), int64(n)
		e.Payload = json.RawMessage(fmt.Sprintf(`{"amount":%d,"eventId":%q}`, n, strings.Repeat("x", random.IntN(300))))
		switch random.IntN(8) {
		case 0:
			e.Payload = json.RawMessage(fmt.Sprintf(`{"eventId":%q}`, strings.Repeat("y", sharedBytes+random.IntN(1000))))
		case 1:
			e.Withheld = true
		case 2:
			e.LogID, e.CorrelationID = uuid.New(), uuid.Nil
		case 3:
			e.Actor.ID = strings.Repeat("z", 2*recordBytes) // longer than expected
		}
		alone, err := ToRecord(&e)
		must.OK(t, err)
		shared, err := w.Record(&e)
		must.OK(t, err)
		got, want = append(got, shared), append(want, alone)
	}
	for i := range got {
		r := &got[i]
		_, _, _ = append(r.Key, "!!!!"...), append(r.Value, "!!!!"...), append(r.Headers, events.Header{Key: "!"})
		for _, h := range r.Headers {
			_ = append(h.Value, "!!!!"...)
		}
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("record %d is\n%+v\nand not\n%+v", i, got[i], want[i])
		}
	}
}
