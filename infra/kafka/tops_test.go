package kafka_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/watermill/pipetest"
)

// TestTopsAreTheLastRecords reads the last records of two partitions, among empty partitions and one with
// a record that has no log position.
func TestTopsAreTheLastRecords(t *testing.T) {
	cfg := config(t)
	admin := ensure(t, cfg)
	if tops, err := admin.Tops(t.Context()); err != nil || len(tops) != 0 {
		t.Fatalf("empty topics: %+v, %v", tops, err)
	}
	log := uuid.Must(uuid.NewV7())
	record := func(partition int16, n int64) events.Record {
		e := events.Envelope{
			LogID: log, Vocabulary: events.CurrentVocabulary(), Residency: events.ResidencyUnspecified, EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRecorded, TenantID: uuid.Must(uuid.NewV7()), Epoch: 7,
			Position: events.Position{Partition: partition, Number: n}, Previous: n - 1, DedupeKey: "u/a", Payload: []byte(`{}`),
			OccurredAt: time.Now(), RecordedAt: time.Now(),
		}
		r, err := codec.ToRecord(&e)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	pub := newPublisher(t, cfg)
	defer pub.Close()
	strange := events.Record{Topic: events.TopicUsageRaw, Partition: 9, Value: []byte("of no log")}
	if err := pipetest.Publish(t.Context(), pub, []events.Record{record(3, 1), record(3, 2), record(31, 40), strange}); err != nil {
		t.Fatal(err)
	}
	tops, err := admin.Tops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[events.Position]bool{}
	for _, p := range tops {
		found[p.Position] = p.Log == log && p.Epoch == 7
	}
	if len(tops) != 2 || !found[events.Position{Partition: 3, Number: 2}] || !found[events.Position{Partition: 31, Number: 40}] {
		t.Errorf("the last records are %+v", tops)
	}
}
