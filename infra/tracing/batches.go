package tracing

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// maxLinks bounds the links of a batch, and the spans of events of one append.
const maxLinks = 32

// Records begins the span of a batch of records, by their traceparents, and returns the function that ends it.
func (t *Tracing) Records(ctx context.Context, handler string, records []events.Record) (context.Context, func(error)) {
	return t.batch(ctx, handler, time.Now(), len(records), func(i int) (uuid.UUID, [8]byte) {
		id, span, _ := events.ParseTraceParent(string(records[i].Header(events.HeaderTrace)))
		return id, span
	})
}

// Batch begins the span of a consumer's transaction that applies events, and returns the function that ends it.
func (t *Tracing) Batch(ctx context.Context, c *projections.Consumer, began time.Time, applied []events.Envelope) (context.Context,
	func(error)) {
	written := &appended{}
	ctx, end := t.batch(context.WithValue(ctx, appendedKey{}, written), c.Name, began, len(applied), func(i int) (uuid.UUID, [8]byte) {
		return applied[i].CorrelationID, events.SpanID(applied[i].EventID)
	})
	return ctx, func(err error) {
		if err == nil {
			written.committed()
		}
		end(err)
	}
}

// batch begins the span of a batch. It belongs to the first sampled trace of its members, so that it is sampled by that
// trace id, too, and has a link to the first member of each of the first 32 sampled traces. A batch without a sampled
// member has no span.
func (t *Tracing) batch(ctx context.Context, name string, began time.Time, n int, member func(i int) (uuid.UUID, [8]byte)) (context.Context,
	func(error)) {
	links := t.links(n, member)
	if len(links) == 0 {
		return ctx, func(error) {}
	}
	ctx, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, links[0].SpanContext), "process "+name,
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithTimestamp(began), trace.WithLinks(links...), trace.WithAttributes(attribute.Int("messaging.batch.message_count", n)))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "") // its text is in the log
		}
		span.End()
	}
}

func (t *Tracing) links(n int, member func(i int) (uuid.UUID, [8]byte)) (links []trace.Link) {
	for i := range n {
		id, span := member(i)
		if id == uuid.Nil || !t.sampler.samples(trace.TraceID(id)) || linked(links, trace.TraceID(id)) {
			continue
		}
		links = append(links, trace.Link{SpanContext: remote(id, span)})
		if len(links) == maxLinks {
			break
		}
	}
	return links
}

func linked(links []trace.Link, id trace.TraceID) bool {
	for i := range links {
		if links[i].SpanContext.TraceID() == id {
			return true
		}
	}
	return false
}

// remote is the span of an event.
func remote(id uuid.UUID, span [8]byte) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID(id), SpanID: span, TraceFlags: trace.FlagsSampled,
		Remote: true})
}
