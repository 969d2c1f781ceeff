package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
)

// shelf stores records, with consecutive offsets, except those whose value is in refused or failing. A
// topic in down fails as a whole.
type shelf struct {
	mu               sync.Mutex
	stored           []string
	refused, failing map[string]bool
	down             map[string]bool
}

var errDown = errors.New("it is down")

func (s *shelf) Close() error { return nil }

func (s *shelf) Publish(topic string, msgs ...*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down[topic] {
		return errDown
	}
	number, _ := events.TopicOf(topic)
	records, err := watermill.ToPublish(number, msgs, false)
	if err != nil {
		return err
	}
	var failed []watermill.FailedRecord
	for i := range records {
		value := string(records[i].Value)
		if s.refused[value] || s.failing[value] {
			failed = append(failed, watermill.FailedRecord{Index: i, Permanent: s.refused[value], Err: errDown})
			continue
		}
		records[i].Offset = int64(len(s.stored))
		s.stored = append(s.stored, fmt.Sprintf("%s %s", topic, value))
	}
	return watermill.NewPublishError(failed, len(records))
}

// Each failure is reported at its record's index, and each stored record has its offset, whatever the
// topics of a call are.
func TestTopicsReportEachRecord(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		topics := []events.Topic{events.TopicUsageRaw, events.TopicUsageValidated, events.TopicCatalogue, 0, 99}
		s := &shelf{refused: map[string]bool{}, failing: map[string]bool{}, down: map[string]bool{}}
		if rapid.Bool().Draw(rt, "a topic is down") {
			s.down["usage.validated"] = true
		}
		records := make([]events.Record, rapid.IntRange(1, 30).Draw(rt, "records"))
		for i := range records {
			value := fmt.Sprint(i)
			records[i] = events.Record{Topic: rapid.SampledFrom(topics).Draw(rt, "topic"), Value: []byte(value), Offset: -1}
			s.refused[value] = rapid.IntRange(0, 9).Draw(rt, "refused") == 0
			s.failing[value] = !s.refused[value] && rapid.IntRange(0, 9).Draw(rt, "failing") == 0
		}
		err := watermill.Topics{Publisher: s, InTurn: rapid.Bool().Draw(rt, "in turn")}.Publish(context.Background(), records)
		failed := watermill.Failures(err, len(records))
		for i, r := range records {
			value, unknown := fmt.Sprint(i), r.Topic.Name() == ""
			f, bad := failed[i]
			if want := unknown || s.down[r.Topic.Name()] || s.refused[value] || s.failing[value]; bad != want {
				rt.Fatalf("record %d of %q: failed is %v, want %v (%v)", i, r.Topic.Name(), bad, want, err)
			}
			if bad && f.Permanent != (unknown || !s.down[r.Topic.Name()] && s.refused[value]) {
				rt.Fatalf("record %d: %+v", i, f)
			}
			if !bad && s.stored[r.Offset] != r.Topic.Name()+" "+value {
				rt.Fatalf("record %d has the offset of %q", i, s.stored[r.Offset])
			}
			if bad && r.Offset != -1 {
				rt.Fatalf("record %d failed and has the offset %d", i, r.Offset)
			}
		}
		for _, topic := range topics { // in order per topic
			var order []int
			for _, text := range s.stored {
				var name string
				var n int
				if fmt.Sscan(text, &name, &n); name == topic.Name() {
					order = append(order, n)
				}
			}
			if !slices.IsSorted(order) {
				rt.Fatalf("%s was published in the order %v", topic.Name(), order)
			}
		}
	})
}

// A batch is published from its payload if it has one. One that has lost its records is an error.
func TestABatchIsPublishedFromItsPayload(t *testing.T) {
	s := &shelf{}
	batch := watermill.Batch([]events.Record{record("a"), record("b")})
	batch.Metadata.Set(watermill.MetadataBatch, "1")
	single := message.NewMessage("id", []byte("c"))
	must.OK(t, s.Publish("usage.raw", batch, single))
	if want := []string{"usage.raw a", "usage.raw b", "usage.raw c"}; !slices.Equal(s.stored, want) {
		t.Errorf("stored %q, want %q", s.stored, want)
	}
	broken := batch.Copy()
	broken.Payload = []byte{0xff}
	if err := s.Publish("usage.raw", broken); err == nil {
		t.Error("a batch that cannot be decoded was published")
	}
	lost := watermill.Outgoing(t.Context(), []events.Record{record("a")}).Copy()
	lost.SetContext(t.Context())
	if err := s.Publish("usage.raw", lost); err == nil {
		t.Error("a batch without its records was published")
	}
}
