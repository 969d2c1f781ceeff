package relay_test

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/watermill"
)

// BenchmarkDrain measures how fast a backlog is published: from the log, through the router, to Kafka
// with acks=all, cursors committed. For comparison it produces the same records 2000 per call, without a
// log, frames or cursors.
func BenchmarkDrain(b *testing.B) {
	for name, tenants := range map[string][]uuid.UUID{"partitions=32": tenantsOfAllPartitions(), "partitions=1": {newID()}} {
		b.Run(name, func(b *testing.B) {
			w := newRelayFixture(b)
			w.appendSized(100_000, 330, tenants...)
			r := w.relay("one")
			b.Logf("produce alone: %.0f events/s", w.produceAlone())
			var before, after syscall.Rusage
			syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			begun := time.Now()
			stop := w.start(r)
			w.awaitDrained()
			took := time.Since(begun)
			syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			stop()
			n := float64(w.int(`SELECT sum(position) FROM log_heads`))
			b.ReportMetric(n/took.Seconds(), "events/s")
			b.ReportMetric(float64(cpu(&after)-cpu(&before))/n/1000, "cpu-µs/event")
			b.ReportMetric(n/float64(w.int(`SELECT count(*) FROM outbox_publications`)), "events/run")
			b.ReportMetric(0, "ns/op")
			runtime.GC()
		})
	}
}

func cpu(r *syscall.Rusage) int64 { return r.Utime.Nano() + r.Stime.Nano() }

func (w *relayFixture) appendSized(n, size int, tenants ...uuid.UUID) {
	var pending []events.Pending
	for i := range n {
		pending = append(pending, w.usage(tenants[i%len(tenants)], size))
		if len(pending) == 5000 || i == n-1 {
			w.append(pending...)
			pending = pending[:0]
		}
	}
}

func (w *relayFixture) produceAlone() (perSecond float64) {
	var records []events.Record
	for _, e := range w.logged()[:50_000] {
		r, _ := codec.ToRecord(&e)
		r.Topic = events.TopicUsageDuplicates
		records = append(records, r)
	}
	publisher := w.relay("alone").Publisher
	begun := time.Now()
	for i := 0; i < len(records); i += 2000 {
		if err := (watermill.Topics{Publisher: publisher}).Publish(w.t.Context(), records[i:min(i+2000, len(records))]); err != nil {
			w.t.Fatal(err)
		}
	}
	return float64(len(records)) / time.Since(begun).Seconds()
}
