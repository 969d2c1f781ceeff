// Package pipetest holds the tests that every pipe must pass. Each pipe's package runs them against a
// real server: Watermill's suite for publishers and subscribers, and our contract for batches. It is for
// tests only.
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

// Publish publishes records in batches, as the relay does, and sets their offsets.
func Publish(ctx context.Context, pub message.Publisher, records []events.Record) error {
	return watermill.Topics{Publisher: pub}.Publish(ctx, records)
}

// Rebatch publishes the messages of each call as one batch, as the relay does. Unbatch is its counterpart.
func Rebatch(pub message.Publisher) message.Publisher { return rebatch{pub} }

type rebatch struct{ message.Publisher }

func (p rebatch) Publish(topic string, msgs ...*message.Message) error {
	number, _ := events.TopicOf(topic)
	records, err := watermill.ToPublish(number, msgs, true)
	if err != nil || len(records) == 0 {
		return err
	}
	return p.Publisher.Publish(topic, watermill.Outgoing(msgs[0].Context(), records))
}

// Pipe creates the components of a pipe, on topics of its own. They accept any topic and keep message
// UUIDs.
type Pipe struct {
	// Partitions is the number of partitions that CreateTopic creates.
	Partitions  int
	Publisher   func(t testing.TB) message.Publisher
	Subscriber  func(t testing.TB, group string, maxRecords int, grace time.Duration) message.Subscriber
	CreateTopic func(topic string) error
}

// single is a Watermill subscriber of single messages on a pipe.
type single struct {
	message.Subscriber
	create  func(topic string) error
	closing chan struct{}
	once    sync.Once
	open    sync.WaitGroup
}

// Unbatch splits each batch into single messages. A batch is acknowledged once all of its messages are. A
// message that is not acknowledged is sent again alone.
func Unbatch(sub message.Subscriber, create func(topic string) error) message.Subscriber {
	return &single{Subscriber: sub, create: create, closing: make(chan struct{})}
}

// SubscribeInitialize implements Watermill's interface.
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
			if s.unbatch(ctx, batch, out) {
				batch.Ack()
			} else {
				batch.Nack()
			}
		}
	})
	return out, nil
}

func (s *single) unbatch(ctx context.Context, batch *message.Message, out chan<- *message.Message) bool {
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

// spread chooses the partition of a message by a hash of by.
type spread struct {
	message.Publisher
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
