package tracing

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// Logs returns a handler that adds the trace of the context to records that do not have one.
func Logs(next slog.Handler) slog.Handler { return logs{next} }

const traceAttr = "trace"

type logs struct{ slog.Handler }

// Handle implements slog.Handler.
func (l logs) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		named := false
		r.Attrs(func(a slog.Attr) bool { named = a.Key == traceAttr; return !named })
		if !named {
			r = r.Clone()
			r.AddAttrs(slog.String(traceAttr, sc.TraceID().String()))
		}
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l logs) WithAttrs(attrs []slog.Attr) slog.Handler { return logs{l.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (l logs) WithGroup(name string) slog.Handler { return logs{l.Handler.WithGroup(name)} }
