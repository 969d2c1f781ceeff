package watermill

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// Metadata of a published message that places its record. All other metadata become record headers.
const (
	MetadataPartition = "mp-partition" // decimal; default: by key
	MetadataKey       = "mp-key"
)

// HeaderMessageUUID carries a message's UUID if a publisher keeps it. Our own records have an event id
// instead.
const HeaderMessageUUID = "_watermill_message_uuid"

// ErrPartition says that a message has an invalid partition.
var ErrPartition = errors.New("invalid partition")

// Batch frames records as the payload of one message. A batch that stays in this process needs no frame:
// Outgoing and Delivery.SendRecords put the records themselves into the message's context.
func Batch(records []events.Record) *message.Message {
	return message.NewMessage(wm.NewUUID(), codec.AppendFrame(make([]byte, 0, frameSize(records)), records))
}

// frameSize is an upper bound, so that the frame is allocated once.
func frameSize(records []events.Record) int {
	const perRecord, perHeader = 32, 8 // lengths and numbers, largest in practice
	n := perRecord
	for i := range records {
		r := &records[i]
		n += perRecord + len(r.Key) + len(r.Value)
		for j := range r.Headers {
			n += perHeader + len(r.Headers[j].Key) + len(r.Headers[j].Value)
		}
	}
	return n
}

type recordsKey struct{}

// WithRecords returns a context that makes Records return a batch of this process.
func WithRecords(ctx context.Context, records []events.Record) context.Context {
	return context.WithValue(ctx, recordsKey{}, records)
}

// Records returns the records of a batch. They share the message's memory, or are those of its sender.
func Records(msg *message.Message) ([]events.Record, error) {
	if records, ok := msg.Context().Value(recordsKey{}).([]events.Record); ok && len(msg.Payload) == 0 {
		return records, nil
	}
	records, err := codec.ParseFrame(msg.Payload)
	if err != nil {
		return nil, fmt.Errorf("decode the batch %s: %w", msg.UUID, err)
	}
	return records, nil
}

// Record returns the record of a message. Headers are sorted by name, so that a repeated message has the
// same bytes.
func Record(topic events.Topic, msg *message.Message, keepUUID bool) (events.Record, error) {
	r := events.Record{Topic: topic, Offset: -1, Value: msg.Payload, Headers: headers(msg, keepUUID)}
	if key, ok := msg.Metadata[MetadataKey]; ok {
		r.Key = []byte(key)
	}
	var err error
	r.Partition, err = partition(msg, r.Key)
	return r, err
}

func headers(msg *message.Message, keepUUID bool) []events.Header {
	h := make([]events.Header, 0, len(msg.Metadata)+1)
	for name, value := range msg.Metadata {
		if name != MetadataPartition && name != MetadataKey {
			h = append(h, events.Header{Key: name, Value: []byte(value)})
		}
	}
	if keepUUID {
		h = append(h, events.Header{Key: HeaderMessageUUID, Value: []byte(msg.UUID)})
	}
	slices.SortFunc(h, func(a, b events.Header) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return h
}

func partition(msg *message.Message, key []byte) (int16, error) {
	text, ok := msg.Metadata[MetadataPartition]
	if !ok {
		h := fnv.New32a()
		h.Write(key)
		return int16(h.Sum32() % events.Partitions), nil
	}
	p, err := strconv.ParseUint(text, 10, 15)
	if err != nil || p >= events.Partitions {
		return 0, fmt.Errorf("message %s for partition %q: %w", msg.UUID, text, ErrPartition)
	}
	return int16(p), nil
}
