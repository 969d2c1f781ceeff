package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
)

func receive(t testing.TB, messages <-chan *message.Message) (*message.Message, []events.Record) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("the subscription ended")
		}
		records, err := kafka.Records(msg)
		must.OK(t, err)
		return msg, records
	case <-time.After(testTimeout):
		t.Fatal("no batch received")
		return nil, nil
	}
}

// toNarrowTopic returns a publisher to a topic with a small batch limit.
func toNarrowTopic(t testing.TB) *kafka.Publisher {
	t.Helper()
	cfg, limit := config(t), "2000"
	cfg.DeliveryTimeout = time.Minute // a busy broker may need longer than the default
	makeTopicOf(t, cfg, events.TopicUsageRaw, map[string]*string{"max.message.bytes": &limit})
	pub := newPublisher(t, cfg)
	t.Cleanup(func() { pub.Close() })
	return pub
}

// TestBrokerRefusesOneRecord checks that a record that only the broker refuses, in the middle of a
// partition, is reported apart from its neighbours.
func TestBrokerRefusesOneRecord(t *testing.T) {
	pub := toNarrowTopic(t)
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "records")
		bad := map[int]bool{rapid.IntRange(0, n-1).Draw(rt, "bad"): true}
		if rapid.Bool().Draw(rt, "two") {
			bad[rapid.IntRange(0, n-1).Draw(rt, "bad too")] = true
		}
		checkRefused(rt, pub, pipetest.Make(events.TopicUsageRaw, 0, n), bad)
	})
}

// incompressible returns text that does not compress well.
func incompressible(n int) []byte {
	var b bytes.Buffer
	for x := uint64(88172645463325252); b.Len() < n; {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b.WriteString(strconv.FormatUint(x, 36))
	}
	return b.Bytes()
}

// TestBatchBounds reads a burst in one partition beside records of other partitions.
func TestBatchBounds(t *testing.T) {
	cfg := config(t)
	makeTopic(t, cfg, events.TopicUsageRaw)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	records := pipetest.Make(events.TopicUsageRaw, 0, 1000)
	for i := range records {
		if records[i].Partition = 3; i%10 == 0 {
			records[i].Partition = int16(i / 10 % 32)
		}
	}
	must.OK(t, pipetest.Publish(t.Context(), pub, records))
	sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g", MaxRecords: 100, MaxRecordsPerPartition: 30})
	defer sub.Close()
	messages, err := sub.Subscribe(t.Context(), "usage.raw")
	must.OK(t, err)
	seen, last := 0, map[int16]int64{}
	for seen < len(records) {
		msg, batch := receive(t, messages)
		perPartition := map[int16]int{}
		for _, r := range batch {
			perPartition[r.Partition]++
			if before, ok := last[r.Partition]; ok && r.Offset != before+1 {
				t.Fatalf("partition %d: offset %d after %d", r.Partition, r.Offset, before)
			}
			last[r.Partition] = r.Offset
		}
		for p, n := range perPartition {
			if n > 30 {
				t.Errorf("%d records of partition %d in a batch, the limit is 30", n, p)
			}
		}
		if len(batch) > 100 {
			t.Errorf("%d records in a batch, the limit is 100", len(batch))
		}
		seen += len(batch)
		msg.Ack()
	}
}

// TestPublishMessages publishes messages as a Watermill router does.
func TestPublishMessages(t *testing.T) {
	cfg := config(t)
	makeTopic(t, cfg, events.TopicUsageRaw)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	msg := message.NewMessage("id", []byte("v"))
	msg.Metadata.Set(kafka.MetadataPartition, "17")
	msg.Metadata.Set(kafka.MetadataKey, "k")
	msg.Metadata.Set("b", "2")
	msg.Metadata.Set("a", "1")
	must.OK(t, pub.Publish("usage.raw", msg))
	wrong := msg.Copy()
	wrong.Metadata.Set(kafka.MetadataPartition, "32")
	if err := pub.Publish("usage.raw", wrong); !errors.Is(err, watermill.ErrPartition) {
		t.Errorf("partition 32: %v", err)
	}
	if err := pub.Publish("usage.other", msg); !errors.Is(err, kafka.ErrUnknownTopic) {
		t.Errorf("an unknown topic: %v", err)
	}
	sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"})
	defer sub.Close()
	if _, err := sub.Subscribe(t.Context(), "usage.other"); !errors.Is(err, kafka.ErrUnknownTopic) {
		t.Errorf("an unknown topic: %v", err)
	}
	messages, err := sub.Subscribe(t.Context(), "usage.raw")
	must.OK(t, err)
	in, records := receive(t, messages)
	in.Ack()
	r := records[0]
	got := fmt.Sprintf("%d %d %s %s %s", r.Topic, r.Partition, r.Key, r.Value, r.Headers)
	if want := "1 17 k v [{a 1} {b 2}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestLowRateSubscriber reads commands through watermill-kafka.
func TestLowRateSubscriber(t *testing.T) {
	cfg := config(t)
	makeTopic(t, cfg, events.TopicCommands)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	sent := pipetest.Make(events.TopicCommands, 0, 20)
	must.OK(t, pipetest.Publish(t.Context(), pub, sent))
	sub, err := kafka.NewLowRateSubscriber(kafka.SubscriberConfig{Config: cfg, Group: events.GroupCommands})
	must.OK(t, err)
	messages, err := sub.Subscribe(t.Context(), "meterplex.commands")
	must.OK(t, err)
	got := map[string]string{}
	for nacked := false; len(got) < len(sent); {
		msg, records := receive(t, messages)
		if len(records) != 1 {
			t.Fatalf("a batch of %d", len(records))
		}
		if !nacked {
			nacked = msg.Nack()
			continue
		}
		got[string(records[0].Value)] = fmt.Sprintf("%+v", records[0])
		msg.Ack()
	}
	for _, r := range sent {
		if want := fmt.Sprintf("%+v", r); got[string(r.Value)] != want {
			t.Errorf("got %s, want %s", got[string(r.Value)], want)
		}
	}
	must.OK(t, sub.Close())
	if _, open := <-messages; open {
		t.Error("a message after Close")
	}
}

func TestLowRateSubscriberWaitsForABroker(t *testing.T) {
	sub, err := kafka.NewLowRateSubscriber(kafka.SubscriberConfig{
		Config: kafka.Config{Brokers: []string{"127.0.0.1:1"}, Logger: logger()}, Group: "g"})
	must.OK(t, err)
	messages, err := sub.Subscribe(t.Context(), "meterplex.commands")
	if err != nil {
		t.Fatalf("Subscribe without a broker failed: %v", err)
	}
	must.OK(t, sub.Close())
	if _, open := <-messages; open {
		t.Error("unexpected message")
	}
}

func TestEnsure(t *testing.T) {
	cfg := config(t)
	admin := ensure(t, cfg)
	if err := admin.Ensure(t.Context()); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := admin.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	topics, err := admin.Topics(t.Context())
	must.OK(t, err)
	for _, topic := range topics {
		if !topic.Ready || topic.Partitions != 32 || topic.Replicas != 1 || topic.InSync != 1 {
			t.Errorf("%+v", topic)
		}
	}
	if len(topics) != len(events.Topics()) {
		t.Errorf("%d topics", len(topics))
	}

	other := config(t)
	create(t, client(t), 6, nil, other.TopicPrefix+"usage.raw")
	err = newAdmin(t, other).Ensure(t.Context())
	if !errors.Is(err, kafka.ErrTopicsUnfit) || !strings.Contains(err.Error(), "usage.raw has 6 partitions, needs 32") {
		t.Errorf("a topic with 6 partitions: %v", err)
	}
}

// TestP10_NothingIsWrittenBehindARefusedRecord publishes to one partition. The fourth record is refused:
// the records before it are stored, those behind it are not.
func TestP10_NothingIsWrittenBehindARefusedRecord(t *testing.T) {
	pub := toNarrowTopic(t)
	records := pipetest.Make(events.TopicUsageRaw, 0, 12)
	for i := range records {
		records[i].Partition = 3
	}
	checkRefused(t, pub, records, map[int]bool{3: true})
}

func checkRefused(t rapid.TB, pub *kafka.Publisher, records []events.Record, bad map[int]bool) {
	first := map[int16]int{} // the first bad record of each partition
	for i := len(records) - 1; i >= 0; i-- {
		if bad[i] {
			records[i].Value = incompressible(5000)
			first[records[i].Partition] = i
		}
	}
	err := pipetest.Publish(context.Background(), pub, records)
	var failed *kafka.PublishError
	if !errors.As(err, &failed) || !errors.Is(err, kerr.MessageTooLarge) {
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
