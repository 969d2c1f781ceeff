package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/jsonschema"
)

// BenchmarkRead reads like a relay or a projection: a thousand whole events of one
// partition.
func BenchmarkRead(b *testing.B) {
	l, _, _ := openLog(b)
	tenant := uuid.Must(uuid.NewV7())
	batch := make([]commands.Submitted, 1000)
	for i := range batch {
		batch[i] = usageEvent(tenant, fmt.Sprintf("e%06d", i), i+1)
	}
	submit(b, l, tenant, batch...)
	b.ReportAllocs()
	for b.Loop() {
		list, err := l.Read(b.Context(), events.PartitionOf(tenant), 0, 1000, 1000)
		if err != nil || len(list) != 1000 {
			b.Fatal(len(list), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "µs/event")
}

// BenchmarkAppend appends batches of 500 events, without a sample of payloads and with the default one.
func BenchmarkAppend(b *testing.B) {
	for name, every := range map[string]int64{"no sample": 0, "one of 1000": 1000} {
		b.Run(name, func(b *testing.B) {
			l, _, _ := openLog(b)
			l.cfg.Written = nil
			if every > 0 {
				s := jsonschema.NewSampler(every, slog.New(slog.DiscardHandler), time.Now, func(events.Subject, bool) {})
				l.cfg.Written = s.Written
				ctx, stop := context.WithCancel(b.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = s.Run(ctx) }()
				defer func() { stop(); <-done }()
			}
			tenant := uuid.Must(uuid.NewV7())
			batch, n := make([]commands.Submitted, 500), 0
			b.ReportAllocs()
			for b.Loop() {
				for i := range batch {
					n++
					batch[i] = usageEvent(tenant, fmt.Sprintf("e%09d", n), 1)
				}
				submit(b, l, tenant, batch...)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(len(batch)), "µs/event")
		})
	}
}
