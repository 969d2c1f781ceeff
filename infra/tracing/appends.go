package tracing

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// appended holds the events that a batch's transaction has written, until the transaction ends.
type appended struct{ spans []func() }

type appendedKey struct{}

func (a *appended) committed() {
	for _, make := range a.spans {
		make()
	}
}

// Appended makes the spans of the first 32 sampled events of an append, from the time it began until now. Their ids
// follow from the eventIds, so that the record of an event names its span. In a batch of a consumer they are made after
// the commit.
func (t *Tracing) Appended(ctx context.Context, began time.Time, n int, event func(i int) (*events.Pending, events.Position)) {
	made, end := 0, time.Now()
	of, _ := ctx.Value(appendedKey{}).(*appended)
	for i := range n {
		e, at := event(i)
		if e.CorrelationID == uuid.Nil || !t.sampler.samples(trace.TraceID(e.CorrelationID)) {
			continue
		}
		make := t.event(ctx, began, end, e, at)
		if of != nil {
			of.spans = append(of.spans, make)
		} else {
			make()
		}
		if made++; made == maxLinks {
			return
		}
	}
}

// event returns a function that makes the span of an event. The span is below the one of the context if that is in the
// event's trace, else below the one of the event's cause. It is linked to the span of the context in another trace, and
// to the event that it repeats. The memory of e is the caller's.
func (t *Tracing) event(ctx context.Context, began, end time.Time, e *events.Pending, at events.Position) func() {
	current, id := trace.SpanContextFromContext(ctx), trace.TraceID(e.CorrelationID)
	parent := current
	var links []trace.Link
	if current.TraceID() != id {
		parent = trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, Remote: true})
		if e.CausationID != uuid.Nil {
			parent = remote(e.CorrelationID, events.SpanID(e.CausationID))
		}
		if current.IsSampled() {
			links = append(links, trace.Link{SpanContext: current})
		}
	}
	if of := e.Repeats; of != nil && of.Trace != uuid.Nil {
		links = append(links, trace.Link{SpanContext: remote(of.Trace, events.SpanID(of.EventID))})
	}
	attributes := []attribute.KeyValue{attribute.String("meterplex.event.id", e.EventID.String()),
		attribute.String("meterplex.position", at.String()),
		attribute.String("meterplex.tenant.id", codec.TenantText(e.TenantID))}
	info, _ := e.Subject.Info()
	name, span := "append "+info.Type, trace.SpanID(events.SpanID(e.EventID))
	return func() {
		under := withSpanID(trace.ContextWithRemoteSpanContext(context.Background(), parent), span)
		_, s := t.tracer.Start(under, name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(began),
			trace.WithLinks(links...), trace.WithAttributes(attributes...))
		s.End(trace.WithTimestamp(end))
	}
}
