package pipetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// testTimeout bounds waits in tests. It is long because the machine may be busy.
const testTimeout = 60 * time.Second

const (
	longGrace  = 30 * time.Second
	shortGrace = 100 * time.Millisecond
)

// Contract runs our own tests of batches, on topics of the registry.
func Contract(t *testing.T, pipe Pipe) {
	for name, test := range map[string]func(*testing.T, Pipe){
		"AcknowledgedBatchesAreNotSentAgain": acknowledged,
		"RefusedBatchIsSentAgainAsItWas":     refused,
		"SecondMemberJoinsInMidBatch":        joined,
		"CloseWaitsForTheBatchInFlight":      closedLate,
		"CloseGivesUpABatchThatHangs":        closedHanging,
		"RecordThatAloneIsTooLarge":          tooLarge,
		"UnknownTopicIsRefused":              unknownTopic,
		"GroupsReadIndependently":            groups,
	} {
		t.Run(name, func(t *testing.T) { test(t, pipe) })
	}
}

// Topics of the registry, one for each contract test that needs its own.
const (
	ackTopic   = events.TopicUsageRaw
	nackTopic  = events.TopicUsageValidated
	joinTopic  = events.TopicUsageDeadLetter
	lateTopic  = events.TopicUsageDuplicates
	hangTopic  = events.TopicCatalogue
	largeTopic = events.TopicBilling
	groupTopic = events.TopicNotifications
)

// Make returns n records of a topic in several partitions. Each has its own number as value.
func Make(topic events.Topic, from, n int) []events.Record {
	records := make([]events.Record, n)
	for i := range records {
		records[i] = events.Record{
			Topic: topic, Partition: int16((from + i) % 7), Key: []byte("tenant"),
			Value: fmt.Appendf(nil, "%d", from+i),
			Headers: []events.Header{
				{Key: events.HeaderPosition, Value: fmt.Appendf(nil, "%d-%d", (from+i)%7, from+i)},
				{Key: events.HeaderSubject, Value: []byte("test.v1")},
			},
		}
	}
	return records
}

func publish(t *testing.T, pub message.Publisher, records []events.Record) {
	t.Helper()
	if err := Publish(t.Context(), pub, records); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

// receive waits for a batch.
func receive(t *testing.T, messages <-chan *message.Message) (*message.Message, []events.Record) {
	t.Helper()
	return receiveOr(t, messages, "no batch received")
}

func receiveOr(t *testing.T, messages <-chan *message.Message, otherwise string) (*message.Message, []events.Record) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("the subscription ended")
		}
		records, err := watermill.Records(msg)
		if err != nil {
			t.Fatal(err)
		}
		return msg, records
	case <-time.After(testTimeout):
		t.Fatal(otherwise)
		return nil, nil
	}
}

func subscribe(t *testing.T, sub message.Subscriber, topic events.Topic) <-chan *message.Message {
	t.Helper()
	messages, err := sub.Subscribe(t.Context(), topic.Name())
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

func closeAll(t *testing.T, parts ...interface{ Close() error }) {
	t.Helper()
	for _, p := range parts {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// drain acknowledges batches until n distinct values were received.
func drain(t *testing.T, messages <-chan *message.Message, seen map[string]int, n int) {
	t.Helper()
	for len(seen) < n {
		msg, records := receive(t, messages)
		for _, r := range records {
			seen[string(r.Value)]++
		}
		msg.Ack()
	}
}

func acknowledged(t *testing.T, pipe Pipe) {
	pub, sub := pipe.Publisher(t), pipe.Subscriber(t, "g", 100, longGrace)
	publish(t, pub, Make(ackTopic, 0, 250))
	messages, seen := subscribe(t, sub, ackTopic), map[string]int{}
	for len(seen) < 250 {
		msg, records := receive(t, messages)
		if len(records) > 100 {
			t.Errorf("a batch of %d records, the limit is 100", len(records))
		}
		for _, r := range records {
			seen[string(r.Value)]++
			if r.Topic != ackTopic || string(r.Header(events.HeaderPosition)) != fmt.Sprintf("%d-%s", r.Partition, r.Value) {
				t.Fatalf("a record was changed: %+v", r)
			}
		}
		msg.Ack()
	}
	closeAll(t, sub)

	publish(t, pub, Make(ackTopic, 250, 1))
	next := pipe.Subscriber(t, "g", 100, longGrace)
	msg, records := receive(t, subscribe(t, next, ackTopic))
	if len(records) != 1 || string(records[0].Value) != "250" {
		t.Errorf("the next member got %d records from %q on, wanted only the one published since", len(records), records[0].Value)
	}
	msg.Ack()
	closeAll(t, next, pub)
}

func refused(t *testing.T, pipe Pipe) {
	pub, sub := pipe.Publisher(t), pipe.Subscriber(t, "g", 10, longGrace)
	publish(t, pub, Make(nackTopic, 0, 30))
	messages := subscribe(t, sub, nackTopic)
	first, _ := receive(t, messages)
	first.Nack()
	for range 3 {
		again, _ := receive(t, messages)
		if !bytes.Equal(again.Payload, first.Payload) {
			t.Fatal("the batch after a Nack differs")
		}
		again.Nack()
	}
	seen := map[string]int{}
	drain(t, messages, seen, 30)
	closeAll(t, sub, pub)
}

func joined(t *testing.T, pipe Pipe) {
	pub, a, b := pipe.Publisher(t), pipe.Subscriber(t, "g", 500, longGrace), pipe.Subscriber(t, "g", 500, longGrace)
	publish(t, pub, Make(joinTopic, 0, 200))
	fromA := subscribe(t, a, joinTopic)
	held, records := receive(t, fromA)
	fromB := subscribe(t, b, joinTopic)
	seen := map[string]int{}
	for _, r := range records {
		seen[string(r.Value)]++
	}
	// A's batch may have been reassigned to B. Its Ack by A must not lose records for B, and must not
	// block later records.
	publish(t, pub, Make(joinTopic, 200, 200))
	time.Sleep(500 * time.Millisecond)
	held.Ack()
	for len(seen) < 400 {
		select {
		case msg := <-fromA:
			settle(t, msg, seen)
		case msg := <-fromB:
			settle(t, msg, seen)
		case <-time.After(testTimeout):
			t.Fatalf("%d of 400 records received", len(seen))
		}
	}
	closeAll(t, a, b)

	publish(t, pub, Make(joinTopic, 400, 1))
	c := pipe.Subscriber(t, "g", 500, longGrace)
	fromC := subscribe(t, c, joinTopic)
	drain(t, fromC, seen, 401)
	closeAll(t, c, pub)
}

func settle(t *testing.T, msg *message.Message, seen map[string]int) {
	t.Helper()
	if msg == nil {
		t.Fatal("a subscription ended")
	}
	records, err := watermill.Records(msg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		seen[string(r.Value)]++
	}
	msg.Ack()
}

func closedLate(t *testing.T, pipe Pipe) {
	pub, sub := pipe.Publisher(t), pipe.Subscriber(t, "g", 10, longGrace)
	publish(t, pub, Make(lateTopic, 0, 5)[:1])
	messages := subscribe(t, sub, lateTopic)
	msg, _ := receive(t, messages)
	done := make(chan error, 1)
	go func() { done <- sub.Close() }()
	select {
	case <-done:
		t.Fatal("Close did not wait for the batch in flight")
	case <-msg.Context().Done():
		t.Fatal("the handler was cancelled by an orderly Close")
	case <-time.After(300 * time.Millisecond):
	}
	msg.Ack()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, open := <-messages; open {
		t.Error("received a batch after Close")
	}
	publish(t, pub, Make(lateTopic, 100, 1))
	next := pipe.Subscriber(t, "g", 10, longGrace)
	msg, records := receive(t, subscribe(t, next, lateTopic))
	if string(records[0].Value) != "100" {
		t.Error("a batch that was acknowledged during Close was delivered again")
	}
	msg.Ack()
	closeAll(t, next, pub)
}

func closedHanging(t *testing.T, pipe Pipe) {
	pub, sub := pipe.Publisher(t), pipe.Subscriber(t, "g", 10, shortGrace)
	publish(t, pub, Make(hangTopic, 0, 3))
	messages := subscribe(t, sub, hangTopic)
	msg, first := receive(t, messages)
	closeAll(t, sub)
	select {
	case <-msg.Context().Done():
	default:
		t.Error("the handler's context is still alive after Close")
	}
	msg.Ack() // too late
	next := pipe.Subscriber(t, "g", 10, shortGrace)
	messages = subscribe(t, next, hangTopic)
	seen := map[string]int{}
	msg, again := receiveOr(t, messages, "a batch that was not acknowledged in time never came again")
	for _, r := range again {
		seen[string(r.Value)]++
	}
	msg.Ack()
	drain(t, messages, seen, 3)
	if seen[string(first[0].Value)] == 0 {
		t.Error("a batch that was not acknowledged in time was lost")
	}
	closeAll(t, next, pub)
}

func tooLarge(t *testing.T, pipe Pipe) {
	pub := pipe.Publisher(t)
	records := Make(largeTopic, 0, 20)
	const bad = 8 // in partition 1, like 1 and 15
	records[bad].Value = bytes.Repeat([]byte("x"), 5<<20)
	err := Publish(t.Context(), pub, records)
	var failed *watermill.PublishError
	if !errors.As(err, &failed) || !errors.Is(err, watermill.ErrTooLarge) {
		t.Fatalf("got %v", err)
	}
	if p := failed.Permanent(); len(p) != 1 || p[0] != bad {
		t.Errorf("records %v can never be published, wanted only %d", p, bad)
	}
	for _, f := range failed.Failed {
		if f.Index < bad && records[f.Index].Partition == records[bad].Partition && f.Permanent {
			t.Errorf("record %d before the bad one failed: %v", f.Index, f.Err)
		}
		if f.Index != bad && !errors.Is(f.Err, watermill.ErrBehind) {
			t.Errorf("record %d: %v", f.Index, f.Err)
		}
	}
	records[bad].Value = nil
	publish(t, pub, records)
	sub := pipe.Subscriber(t, "g", 100, longGrace)
	messages, seen := subscribe(t, sub, largeTopic), map[string]int{}
	drain(t, messages, seen, 20)
	closeAll(t, sub, pub)
}

func unknownTopic(t *testing.T, pipe Pipe) {
	pub := pipe.Publisher(t)
	defer closeAll(t, pub)
	records := []events.Record{{Topic: 99, Value: []byte("x")}}
	err := Publish(t.Context(), pub, records)
	var failed *watermill.PublishError
	if !errors.Is(err, watermill.ErrUnknownTopic) || !errors.As(err, &failed) || len(failed.Permanent()) != 1 {
		t.Errorf("got %v", err)
	}
}

func groups(t *testing.T, pipe Pipe) {
	pub := pipe.Publisher(t)
	publish(t, pub, Make(groupTopic, 0, 40))
	for _, group := range []string{"one", "two"} {
		sub := pipe.Subscriber(t, group, 100, longGrace)
		ctx, cancel := context.WithCancel(t.Context())
		messages, err := sub.Subscribe(ctx, groupTopic.Name())
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		drain(t, messages, seen, 40)
		cancel() // ends the subscription as Close does
		for range messages {
		}
		closeAll(t, sub)
	}
	closeAll(t, pub)
}
