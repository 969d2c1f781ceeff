package kafka_test

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/infra/watermill/pipetest"
)

// TestP10_NothingIsWrittenBehindARefusedRecord has one partition, whose fourth record
// is refused: of its neighbours those before it are stored, those behind it are not.
func TestP10_NothingIsWrittenBehindARefusedRecord(t *testing.T) {
	pub := toNarrowTopic(t)
	records := pipetest.Make(events.TopicUsageRaw, 0, 12)
	for i := range records {
		records[i].Partition = 3
	}
	refusedAsAlone(t, pub, records, map[int]bool{3: true})
}

func refusedAsAlone(t rapid.TB, pub *kafka.Publisher, records []events.Record, bad map[int]bool) {
	first := map[int16]int{} // the first bad record of each partition
	for i := len(records) - 1; i >= 0; i-- {
		if bad[i] {
			records[i].Value = incompressible(5000)
			first[records[i].Partition] = i
		}
	}
	_, err := pub.PublishRecords(context.Background(), records)
	var failed *kafka.PublishError
	if !errors.As(err, &failed) || !errors.Is(err, kerr.MessageTooLarge) {
		t.Fatalf("got %v", err)
	}
	told := map[int]kafka.FailedRecord{}
	for _, f := range failed.Failed {
		told[f.Index] = f
	}
	for i, r := range records {
		cut, refused := first[r.Partition]
		f, toldFailed := told[i]
		switch {
		case !refused || i < cut:
			if toldFailed || r.Offset < 0 {
				t.Fatalf("record %d stands before every refused one and failed: %v", i, f.Err)
			}
		case i == cut:
			if !f.Permanent {
				t.Fatalf("record %d alone is refused, told was %v", i, f.Err)
			}
		case !toldFailed || f.Permanent || !errors.Is(f.Err, watermill.ErrBehind):
			t.Fatalf("record %d stands behind a refused one, told was %+v", i, f)
		}
	}
}
