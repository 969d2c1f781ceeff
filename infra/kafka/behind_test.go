package kafka_test

import (
	"context"
	"errors"
	"testing"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/infra/watermill/pipetest"
)

// TestP10_NothingIsWrittenBehindARefusedRecord publishes to one partition. The fourth record is refused:
// the records before it are stored, those behind it are not.
func TestP10_NothingIsWrittenBehindARefusedRecord(t *testing.T) {
	pub := toNarrowTopic(t, events.TopicUsageRaw)
	records := pipetest.Make(events.TopicUsageRaw, 0, 12)
	for i := range records {
		records[i].Partition = 3
	}
	checkRefused(t, pub, records, map[int]bool{3: true}, kerr.MessageTooLarge)
}

// TestP10_NothingIsWrittenBehindARefusedRecordOfLowRate does the same through watermill-kafka, with a second
// partition beside it.
func TestP10_NothingIsWrittenBehindARefusedRecordOfLowRate(t *testing.T) {
	pub := toNarrowTopic(t, events.TopicCatalogue)
	records := pipetest.Make(events.TopicCatalogue, 0, 12)
	for i := range records {
		records[i].Partition = int16(3 + i%2)
	}
	checkRefused(t, pub, records, map[int]bool{4: true}, sarama.ErrMessageSizeTooLarge)
}

func checkRefused(t rapid.TB, pub *kafka.Publisher, records []events.Record, bad map[int]bool, refusal error) {
	first := map[int16]int{} // the first bad record of each partition
	for i := len(records) - 1; i >= 0; i-- {
		if bad[i] {
			records[i].Value = incompressible(5000)
			first[records[i].Partition] = i
		}
	}
	err := pipetest.Publish(context.Background(), pub, records)
	var failed *kafka.PublishError
	if !errors.As(err, &failed) || !errors.Is(err, refusal) {
		t.Fatalf("got %v", err)
	}
	reported := map[int]kafka.FailedRecord{}
	for _, f := range failed.Failed {
		reported[f.Index] = f
	}
	for i, r := range records {
		cut, refused := first[r.Partition]
		f, isReported := reported[i]
		switch {
		case !refused || i < cut:
			if isReported || r.Offset < 0 {
				t.Fatalf("record %d precedes every refused record and failed: %v", i, f.Err)
			}
		case i == cut:
			if !f.Permanent {
				t.Fatalf("record %d is permanently refused, reported was %v", i, f.Err)
			}
		case !isReported || f.Permanent || !errors.Is(f.Err, watermill.ErrBehind):
			t.Fatalf("record %d stands behind a refused one, told was %+v", i, f)
		}
	}
}
