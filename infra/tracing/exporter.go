package tracing

import (
	"context"
	"log/slog"
	"sync"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// exporter counts the exported spans, and logs the first failure of a streak and its end.
type exporter struct {
	sdk.SpanExporter
	logger *slog.Logger
	count  func(result string, spans int)

	mu     sync.Mutex
	streak int // failed spans since the last success
}

// ExportSpans implements sdk.SpanExporter. It returns no error: the library would log each one.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.count(Failed, len(spans))
		if e.streak == 0 {
			e.logger.Warn("the collector of traces accepts no spans: they are dropped until it does", "error", err)
		}
		e.streak += len(spans)
		return nil
	}
	e.count(Exported, len(spans))
	if e.streak > 0 {
		e.logger.Info("the collector of traces accepts spans again", "dropped", e.streak)
		e.streak = 0
	}
	return nil
}

// counted counts the spans that end.
type counted struct {
	sdk.SpanProcessor
	count func(result string, spans int)
}

// OnEnd implements sdk.SpanProcessor.
func (c counted) OnEnd(s sdk.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.count(Queued, 1)
	}
	c.SpanProcessor.OnEnd(s)
}
