// Package pipetest holds what every pipe must do, as tests that each pipe's own
// package runs against a real server: Watermill's suite for publishers and
// subscribers, and our contract for batches. It is for tests only.
package pipetest

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// Publisher is a pipe's way in.
type Publisher interface {
	message.Publisher
	PublishRecords(ctx context.Context, records []events.Record) ([]events.Record, error)
}

// Pipe makes the parts of a pipe, on topics of this test's own. They take any
// topic and keep messages' UUIDs.
type Pipe struct {
	// Partitions is how many partitions CreateTopic makes.
	Partitions  int
	Publisher   func(t testing.TB) Publisher
	Subscriber  func(t testing.TB, group string, maxRecords int, grace time.Duration) message.Subscriber
	CreateTopic func(topic string) error
}

// single makes a Watermill pub/sub of single messages of the pipe.
type single struct {
	message.Subscriber
	create  func(topic string) error
	closing chan struct{}
	once    sync.Once
	open    sync.WaitGroup
}

// Unbatch opens each batch into single messages. A batch is acknowledged when all
// of its messages are; one that is refused is sent again by itself.
func Unbatch(sub message.Subscriber, create func(topic string) error) message.Subscriber {
	return &single{Subscriber: sub, create: create, closing: make(chan struct{})}
}

// SubscribeInitialize is Watermill's interface.
func (s *single) SubscribeInitialize(topic string) error { return s.create(topic) }

func (s *single) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	batches, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	s.open.Go(func() {
		defer close(out)
		for batch := range batches {
			if s.open1(ctx, batch, out) {
				batch.Ack()
			} else {
				batch.Nack()
			}
		}
	})
	return out, nil
}

func (s *single) open1(ctx context.Context, batch *message.Message, out chan<- *message.Message) bool {
	records, err := watermill.Records(batch)
	if err != nil {
		return false
	}
	for i := range records {
		for {
			acked, again := s.send(ctx, batch.Context(), messageOf(&records[i]), out)
			if acked {
				break
			}
			if !again {
				return false
			}
		}
	}
	return true
}

func (s *single) send(ctx, batch context.Context, msg *message.Message, out chan<- *message.Message) (acked, again bool) {
	handling, cancel := context.WithCancel(batch)
	defer cancel()
	msg.SetContext(handling)
	select {
	case out <- msg:
	case <-ctx.Done():
		return false, false
	case <-s.closing:
		return false, false
	}
	select {
	case <-msg.Acked():
		return true, false
	case <-msg.Nacked():
		return false, ctx.Err() == nil
	case <-ctx.Done():
		return false, false
	case <-s.closing:
		return false, false
	}
}

func (s *single) Close() error {
	s.once.Do(func() { close(s.closing) })
	err := s.Subscriber.Close()
	s.open.Wait()
	return err
}

func messageOf(r *events.Record) *message.Message {
	msg := message.NewMessage("", r.Value)
	for _, h := range r.Headers {
		if h.Key == watermill.HeaderMessageUUID {
			msg.UUID = string(h.Value)
		} else {
			msg.Metadata.Set(h.Key, string(h.Value))
		}
	}
	return msg
}

// spread publishes to the partition that a part of the message decides.
type spread struct {
	Publisher
	partitions int
	by         func(*message.Message) string
}

func (p spread) Publish(topic string, msgs ...*message.Message) error {
	placed := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		placed[i] = msg.Copy()
		h := fnv.New32a()
		fmt.Fprint(h, p.by(msg))
		placed[i].Metadata.Set(watermill.MetadataPartition, strconv.Itoa(int(h.Sum32()%uint32(p.partitions))))
	}
	return p.Publisher.Publish(topic, placed...)
}
