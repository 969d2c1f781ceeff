package tracing

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/uuid"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// traced is a Tracing that exports into memory.
type traced struct {
	*Tracing
	t    *testing.T
	to   *tracetest.InMemoryExporter
	logs *logText

	mu     sync.Mutex
	counts map[string]int
}

// logText is a log that several goroutines write.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newTraced exports to an exporter; nil: into memory.
func newTraced(t *testing.T, ratio float64, to sdk.SpanExporter) *traced {
	t.Helper()
	x := &traced{t: t, to: tracetest.NewInMemoryExporter(), logs: &logText{}, counts: map[string]int{}}
	if to == nil {
		to = kept{x.to}
	}
	var err error
	x.Tracing, err = start(t.Context(), Config{Ratio: ratio, Instance: "i", Version: "v",
		Logger: slog.New(slog.NewTextHandler(x.logs, nil)), Count: x.count}, to)
	must.OK(t, err)
	t.Cleanup(x.Stop)
	return x
}

func (x *traced) count(result string, n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[result] += n
}

func (x *traced) counted(result string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.counts[result]
}

// spans returns the ended spans, by name.
func (x *traced) spans() map[string][]tracetest.SpanStub {
	x.t.Helper()
	must.OK(x.t, x.provider.ForceFlush(context.Background()))
	by := map[string][]tracetest.SpanStub{}
	for _, s := range x.to.GetSpans() {
		by[s.Name] = append(by[s.Name], s)
	}
	return by
}

// one returns the only span, and fails if there are others.
func (x *traced) one() tracetest.SpanStub {
	x.t.Helper()
	x.spans()
	all := x.to.GetSpans()
	if len(all) != 1 {
		x.t.Fatalf("%d spans: %+v", len(all), all)
	}
	return all[0]
}

// kept keeps its spans when it is shut down.
type kept struct{ *tracetest.InMemoryExporter }

func (kept) Shutdown(context.Context) error { return nil }

func newTrace(t *testing.T) uuid.UUID {
	t.Helper()
	return uuid.Must(uuid.NewRandom())
}

// event returns a pending event in a trace.
func event(trace uuid.UUID) events.Pending {
	return events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRecorded, TenantID: uuid.New(), CorrelationID: trace}
}

// append appends events in a context.
func (x *traced) append(ctx context.Context, list ...events.Pending) {
	x.Appended(ctx, x.began(), len(list), func(i int) (*events.Pending, events.Position) {
		return &list[i], events.Position{Partition: 3, Number: int64(i + 1)}
	})
}

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }
