package tracing

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/meterplex/meterplex/events"
)

// discarded discards spans.
type discarded struct{}

func (discarded) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }

func (discarded) Shutdown(context.Context) error { return nil }

func newBench(b *testing.B, ratio float64) *Tracing {
	b.Helper()
	t, err := start(b.Context(), Config{Ratio: ratio}, discarded{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(t.Stop)
	return t
}

// BenchmarkARequest is the cost of a request that is sampled, or not, beside one without traces.
func BenchmarkARequest(b *testing.B) {
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	for name, h := range map[string]http.Handler{"none": handler, "0": newBench(b, 1e-12).Handler(handler), "1": newBench(b, 1).Handler(handler)} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest("POST", "/api/v1/usage/events", nil)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}

// BenchmarkABatch is the cost of a batch of 500 records of different traces.
func BenchmarkABatch(b *testing.B) {
	records := make([]events.Record, 500)
	for i := range records {
		records[i].Headers = []events.Header{{Key: events.HeaderTrace, Value: events.AppendTraceParent(nil, uuid.New(), uuid.New())}}
	}
	for name, ratio := range map[string]float64{"0.01": 0.01, "1": 1} {
		b.Run(name, func(b *testing.B) {
			t := newBench(b, ratio)
			b.ReportAllocs()
			for b.Loop() {
				_, end := t.Records(b.Context(), "relay", records)
				end(nil)
			}
		})
	}
}
