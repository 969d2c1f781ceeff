package pipetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// benchBatch is the batch size of a relay with a backlog.
const benchBatch = 1000

// BenchmarkPublish publishes 1000 records per call, one call after the other, and reports records per
// second.
func BenchmarkPublish(b *testing.B, pipe Pipe) {
	pub := pipe.Publisher(b)
	defer pub.Close()
	records := typical(benchBatch)
	publish := func() {
		if err := Publish(context.Background(), pub, records); err != nil {
			b.Fatal(err)
		}
	}
	publish() // a broker takes seconds to open the partitions of a new topic
	b.ResetTimer()
	for b.Loop() {
		publish()
	}
	b.ReportMetric(float64(b.N*benchBatch)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkConsume reads published records in batches of 2000 and acknowledges each batch. It reports
// records per second after the first batch.
func BenchmarkConsume(b *testing.B, pipe Pipe) {
	pub := pipe.Publisher(b)
	defer pub.Close()
	const total = 300 * benchBatch
	for range total / benchBatch {
		if err := Publish(context.Background(), pub, typical(benchBatch)); err != nil {
			b.Fatal(err)
		}
	}
	read, took := 0, time.Duration(0)
	for i := 0; b.Loop(); i++ {
		n, d := readThrough(b, pipe, fmt.Sprintf("g%d", i), total)
		read, took = read+n, took+d
	}
	b.ReportMetric(float64(read)/took.Seconds(), "records/s")
}

func readThrough(b *testing.B, pipe Pipe, group string, total int) (int, time.Duration) {
	sub := pipe.Subscriber(b, group, 2*benchBatch, time.Second)
	defer sub.Close()
	messages, err := sub.Subscribe(context.Background(), events.TopicUsageRaw.Name())
	if err != nil {
		b.Fatal(err)
	}
	var start time.Time
	read, first := 0, 0
	for read < total {
		msg := <-messages
		records, err := watermill.Records(msg)
		if err != nil {
			b.Fatal(err)
		}
		if read += len(records); first == 0 {
			first, start = len(records), time.Now()
		}
		msg.Ack()
	}
	return read - first, time.Since(start)
}

// typical returns records like those of usage: an envelope of about 700 bytes, our headers, tenants in
// all partitions.
func typical(n int) []events.Record {
	records := make([]events.Record, n)
	for i := range records {
		p := int16(rand.N(events.Partitions))
		number := rand.N(1 << 40)
		records[i] = events.Record{
			Topic: events.TopicUsageRaw, Partition: p, Key: fmt.Appendf(nil, "0191e6f0-7c3a-7000-8000-%012x", p),
			Value: fmt.Appendf(nil, `{"eventId":"0191e6f0-%04x-7000-8000-%012x","eventType":"meterplex.usage.event.recorded","eventVersion":1,"schemaUri":"https://meterplex.dev/schemas/usage-recorded/1#sha256-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08","tenantId":"0191e6f0-7c3a-7000-8000-%012x","partition":%d,"position":%d,"epoch":1,"actor":{"type":"api_key","id":"0191e6f0-7c3a-7000-8000-00000000000a"},"occurredAt":"2026-01-01T00:00:00.%06dZ","recordedAt":"2026-01-01T00:00:00.000000Z","producedBy":{"service":"meterplex","instance":"i-1","commit":"0123456789ab"},"idempotencyKey":"u/%d","payload":{"eventId":"%d","feature":"api_calls","amount":%d,"timestamp":"2026-01-01T00:00:00Z","type":"usage"}}`,
				number&0xffff, number, p, p, number, number%1e6, number, number, number%100),
			Headers: []events.Header{
				{Key: events.HeaderSubject, Value: []byte("meterplex.usage.event.recorded.v1")},
				{Key: events.HeaderPosition, Value: fmt.Appendf(nil, "%d-%d", p, number)},
				{Key: events.HeaderPrevious, Value: fmt.Appendf(nil, "%d", number-1)},
				{Key: events.HeaderEpoch, Value: []byte("1")},
				{Key: events.HeaderEventID, Value: fmt.Appendf(nil, "0191e6f0-%04x-7000-8000-%012x", number&0xffff, number)},
				{Key: events.HeaderTenant, Value: fmt.Appendf(nil, "0191e6f0-7c3a-7000-8000-%012x", p)},
			},
		}
	}
	return records
}

// BenchmarkRoundTrip publishes, receives and acknowledges one record: the latency of the pipe itself.
func BenchmarkRoundTrip(b *testing.B, pipe Pipe) {
	pub, sub := pipe.Publisher(b), pipe.Subscriber(b, "g", benchBatch, time.Second)
	defer pub.Close()
	defer sub.Close()
	messages, err := sub.Subscribe(context.Background(), events.TopicUsageRaw.Name())
	if err != nil {
		b.Fatal(err)
	}
	trip := func() {
		if err := Publish(context.Background(), pub, typical(1)); err != nil {
			b.Fatal(err)
		}
		(<-messages).Ack()
	}
	for range 10 {
		trip()
	}
	b.ResetTimer()
	for b.Loop() {
		trip()
	}
}
