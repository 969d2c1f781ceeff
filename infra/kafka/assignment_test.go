package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Offsets of a batch that was read before its partition was revoked are not marked, also if the partition has come back meanwhile:
// another member may have gone back, or its records may be read again here.
func TestABatchFromBeforeARevocationMarksNoOffset(t *testing.T) {
	const topic = "usage.raw"
	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.ConsumerGroup("g"), kgo.ConsumeTopics(topic), kgo.AutoCommitMarks())
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseAllowingRebalance()
	a, of := newAssignment(topic), map[string][]int32{topic: {3, 4}}
	read := func(partition int32, offset int64) share {
		return share{partition, a.generation(partition), []*kgo.Record{{Partition: partition, Offset: offset}}}
	}
	a.assigned(t.Context(), client, of)
	before := []share{read(3, 41), read(4, 51)}
	a.lost(t.Context(), client, map[string][]int32{topic: {3}})
	a.assigned(t.Context(), client, map[string][]int32{topic: {3}})
	a.mark(client, before)
	if got := client.MarkedOffsets()[topic]; got[3].Offset != 0 || got[4].Offset != 52 {
		t.Errorf("partition 3 is marked up to %d, want 0, partition 4 up to %d, want 52", got[3].Offset, got[4].Offset)
	}
	a.mark(client, []share{read(3, 7)})
	if got := client.MarkedOffsets()[topic]; got[3].Offset != 8 {
		t.Errorf("partition 3 is marked up to %d, want 8", got[3].Offset)
	}
}
