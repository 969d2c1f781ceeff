package tracing

import (
	"context"
	"net/http"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/meterplex/meterplex/events"
)

// Attempt begins the span of a request that delivers an event to another service, and returns the function that ends it
// with the status of the answer; 0: no answer. It is below the span of the event. The receiver's spans are, too: the
// header names the event, because it must be the same in each attempt and without traces. The span holds no URL, which
// is a tenant's.
func (t *Tracing) Attempt(ctx context.Context, name string, of events.TracedEvent) (context.Context, func(status int)) {
	if of.Trace == uuid.Nil || !t.sampler.samples(trace.TraceID(of.Trace)) {
		return ctx, func(int) {}
	}
	ctx, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, remote(of.Trace, events.SpanID(of.EventID))), name,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("meterplex.event.id", of.EventID.String())))
	return ctx, func(status int) {
		if status != 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", status))
		}
		if status < http.StatusOK || status >= http.StatusMultipleChoices {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}
