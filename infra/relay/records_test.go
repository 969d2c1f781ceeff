package relay_test

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
)

func toRecord(topic events.Topic, k *kgo.Record) events.Record {
	r := events.Record{Topic: topic, Partition: int16(k.Partition), Offset: k.Offset, Key: k.Key, Value: k.Value}
	for _, h := range k.Headers {
		r.Headers = append(r.Headers, events.Header(h))
	}
	return r
}

func sameRecord(a, b *kgo.Record) bool {
	if !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !bytes.Equal(a.Headers[i].Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}
