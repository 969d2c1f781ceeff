package eventlog

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
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
