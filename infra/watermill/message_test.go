package watermill_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
)

// TestBatchRoundTrip also checks that a frame is allocated once: its size estimate is never too small.
func TestBatchRoundTrip(t *testing.T) {
	bytesOf := rapid.SliceOfN(rapid.Byte(), 0, 300)
	header := rapid.Custom(func(t *rapid.T) events.Header {
		return events.Header{Key: rapid.String().Draw(t, "key"), Value: bytesOf.Draw(t, "value")}
	})
	record := rapid.Custom(func(t *rapid.T) events.Record {
		return events.Record{
			Topic: events.Topic(rapid.IntRange(0, 8).Draw(t, "topic")), Partition: int16(rapid.IntRange(0, 31).Draw(t, "partition")),
			Offset: rapid.Int64Min(-1).Draw(t, "offset"), Key: bytesOf.Draw(t, "key"), Value: bytesOf.Draw(t, "value"),
			Headers: rapid.SliceOfN(header, 0, 9).Draw(t, "headers"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(record, 0, 20).Draw(t, "records")
		msg := watermill.Batch(records)
		got, err := watermill.Records(msg)
		must.OK(t, err)
		if !reflect.DeepEqual(got, records) && len(got)+len(records) > 0 {
			t.Fatalf("got %v, want %v", got, records)
		}
	})
}

func TestRecordsRefusesInvalidFrames(t *testing.T) {
	if _, err := watermill.Records(message.NewMessage("id", []byte("{}"))); err == nil {
		t.Error("opened JSON as a batch")
	}
}

// TestRecordIsTheSameBytes checks that headers are sorted: the order of metadata is random.
func TestRecordIsTheSameBytes(t *testing.T) {
	make := func() events.Record {
		msg := message.NewMessage("id", []byte("v"))
		for _, name := range []string{"e", "d", "c", "b", "a"} {
			msg.Metadata.Set(name, name)
		}
		msg.Metadata.Set(watermill.MetadataKey, "tenant")
		r, err := watermill.Record(events.TopicCommands, msg, true)
		must.OK(t, err)
		return r
	}
	first := watermill.Batch([]events.Record{make()}).Payload
	for range 50 {
		if !bytes.Equal(first, watermill.Batch([]events.Record{make()}).Payload) {
			t.Fatal("the same message gave different records")
		}
	}
}

func TestPublishError(t *testing.T) {
	if err := watermill.NewPublishError(nil, 3); err != nil {
		t.Errorf("no failures are an error: %v", err)
	}
	away, large := errors.New("away"), watermill.ErrTooLarge
	err := watermill.NewPublishError([]watermill.FailedRecord{
		{Index: 2, Err: watermill.ErrBehind}, {Index: 1, Permanent: true, Err: large}, {Index: 0, Err: away},
	}, 3)
	var failed *watermill.PublishError
	if !errors.As(err, &failed) || !errors.Is(err, large) || !reflect.DeepEqual(failed.Permanent(), []int{1}) ||
		failed.Failed[0].Index != 0 {
		t.Errorf("%v", err)
	}
	behind := watermill.NewPublishError([]watermill.FailedRecord{{Index: 0, Err: watermill.ErrBehind}, {Index: 1, Err: away}}, 2)
	if !errors.Is(behind, away) {
		t.Errorf("the cause is hidden: %v", behind)
	}
}
