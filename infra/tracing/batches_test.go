package tracing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

func (x *traced) began() time.Time { return time.Now().Add(-time.Second) }

// applied returns an event as a consumer applies it.
func applied(trace uuid.UUID) events.Envelope {
	return events.Envelope{EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRecorded, CorrelationID: trace}
}

var consumer = projections.Consumer{Name: "c"}

// A batch is one span, in the trace of its first event, with a link to one event of each trace, at most 32.
func TestABatchIsOneSpanWithAtMost32Links(t *testing.T) {
	x := newTraced(t, 1, nil)
	var list []events.Envelope
	for range 40 {
		trace := newTrace(t)
		list = append(list, applied(trace), applied(trace))
	}
	_, end := x.Batch(t.Context(), &consumer, x.began(), list)
	end(nil)
	s := x.one()
	if s.Name != "process c" || s.Parent.TraceID() != trace.TraceID(list[0].CorrelationID) ||
		s.Parent.SpanID() != events.SpanID(list[0].EventID) {
		t.Errorf("%s below %s", s.Name, s.Parent.SpanID())
	}
	if len(s.Links) != 32 {
		t.Fatalf("%d links", len(s.Links))
	}
	for i, l := range s.Links {
		if of := list[2*i]; l.SpanContext.TraceID() != trace.TraceID(of.CorrelationID) ||
			l.SpanContext.SpanID() != events.SpanID(of.EventID) {
			t.Errorf("link %d leads to %s", i, l.SpanContext.TraceID())
		}
	}
	if s.DroppedLinks != 0 {
		t.Errorf("the library dropped %d links", s.DroppedLinks)
	}
}

// A batch is sampled if a trace of one of its events is, and names only those.
func TestABatchIsSampledByTheTracesOfItsEvents(t *testing.T) {
	x := newTraced(t, 0.3, nil)
	of, sampled := newSampler(0.3), map[trace.TraceID]bool{}
	var list []events.Envelope
	for range 30 {
		e := applied(newTrace(t))
		list, sampled[trace.TraceID(e.CorrelationID)] = append(list, e), of.samples(trace.TraceID(e.CorrelationID))
	}
	list = append(list, applied(uuid.Nil))
	for i := range list {
		ctx, end := x.Batch(t.Context(), &consumer, x.began(), list[i:i+1])
		if trace.SpanFromContext(ctx).IsRecording() != sampled[trace.TraceID(list[i].CorrelationID)] {
			t.Errorf("the batch of %s alone is sampled: %v", list[i].CorrelationID, trace.SpanFromContext(ctx).IsRecording())
		}
		end(nil)
	}
	x.spans()
	x.to.Reset()
	_, end := x.Batch(t.Context(), &consumer, x.began(), list)
	end(nil)
	for _, l := range x.one().Links {
		if !sampled[l.SpanContext.TraceID()] {
			t.Errorf("a link leads to %s, which is not sampled", l.SpanContext.TraceID())
		}
		delete(sampled, l.SpanContext.TraceID())
	}
	for id, left := range sampled {
		if left {
			t.Errorf("no link leads to %s, which is sampled", id)
		}
	}
}

// The text of an error stays in the log: it may repeat a value.
func TestAFailedBatchHasNoTextOfItsError(t *testing.T) {
	x := newTraced(t, 1, nil)
	ctx, end := x.Batch(t.Context(), &consumer, x.began(), []events.Envelope{applied(newTrace(t))})
	x.append(ctx, event(newTrace(t)))
	end(errors.New("canary"))
	if s := x.one(); s.Status.Code != codes.Error || s.Status.Description != "" || len(s.Events) != 0 {
		t.Errorf("status %+v, events %+v", s.Status, s.Events)
	}
}

// Records of the topics name the spans of their events, so that the batch of another process is in the same trace.
func TestABatchOfRecordsIsFoundByTheirTraceParents(t *testing.T) {
	x := newTraced(t, 1, nil)
	of, id := newTrace(t), uuid.Must(uuid.NewV7())
	records := []events.Record{
		{}, {Headers: []events.Header{{Key: "traceparent", Value: []byte("00-zz")}}},
		{Headers: []events.Header{{Key: "traceparent", Value: events.AppendTraceParent(nil, of, id)}}},
	}
	_, end := x.Records(t.Context(), "relay", records)
	end(nil)
	s := x.one()
	if s.Name != "process relay" || s.SpanContext.TraceID() != trace.TraceID(of) || s.Parent.SpanID() != events.SpanID(id) ||
		len(s.Links) != 1 {
		t.Errorf("%s in %s, %d links", s.Name, s.SpanContext.TraceID(), len(s.Links))
	}
	x.to.Reset()
	ctx, end := x.Records(t.Context(), "relay", records[:2])
	end(nil)
	if len(x.spans()) != 0 || trace.SpanContextFromContext(ctx).IsValid() {
		t.Error("a batch without a trace has a span")
	}
}

// The spans of events: their ids follow from the eventIds; below the request of the same trace, else below their cause.
func TestTheSpanOfAnEventFollowsFromItsID(t *testing.T) {
	x := newTraced(t, 1, nil)
	ctx, request := x.tracer.Start(t.Context(), "request")
	own, other := event(uuid.UUID(request.SpanContext().TraceID())), event(newTrace(t))
	verdict, repeated := event(other.CorrelationID), event(newTrace(t))
	verdict.CausationID = other.EventID
	repeated.Repeats = &events.TracedEvent{Trace: own.CorrelationID, EventID: own.EventID}
	x.append(ctx, own, other)
	x.append(context.Background(), verdict, repeated)
	x.append(context.Background(), event(uuid.Nil))
	for i, c := range []struct {
		e      events.Pending
		parent trace.SpanID
		link   trace.SpanID
	}{
		{own, request.SpanContext().SpanID(), trace.SpanID{}}, {other, trace.SpanID{}, request.SpanContext().SpanID()},
		{verdict, events.SpanID(other.EventID), trace.SpanID{}}, {repeated, trace.SpanID{}, events.SpanID(own.EventID)},
	} {
		all := x.spans()["append meterplex.usage.event.recorded"]
		if len(all) != 4 {
			t.Fatalf("%d spans of events", len(all))
		}
		s := all[i]
		if s.SpanContext.TraceID() != trace.TraceID(c.e.CorrelationID) || s.SpanContext.SpanID() != events.SpanID(c.e.EventID) ||
			s.Parent.SpanID() != c.parent {
			t.Errorf("span %d is %s of %s below %s, want below %s", i, s.SpanContext.SpanID(), s.SpanContext.TraceID(), s.Parent.SpanID(),
				c.parent)
		}
		if linked := len(s.Links) == 1 && s.Links[0].SpanContext.SpanID() == c.link; linked != c.link.IsValid() || len(s.Links) > 1 {
			t.Errorf("span %d has the links %+v, want %s", i, s.Links, c.link)
		}
	}
	request.End()
}

// A request of a thousand events has the spans of 32 of them.
func TestAnAppendHasAtMost32Spans(t *testing.T) {
	x := newTraced(t, 1, nil)
	list := make([]events.Pending, 1000)
	for i := range list {
		list[i] = event(newTrace(t))
	}
	x.append(t.Context(), list...)
	if n := len(x.spans()["append meterplex.usage.event.recorded"]); n != 32 {
		t.Errorf("%d spans", n)
	}
}

// An event whose transaction was rolled back has no span: its next attempt has another eventId.
func TestEventsOfARolledBackBatchHaveNoSpans(t *testing.T) {
	x := newTraced(t, 1, nil)
	for _, fails := range []error{errors.New("rolled back"), nil} {
		ctx, end := x.Batch(t.Context(), &consumer, x.began(), []events.Envelope{applied(newTrace(t))})
		x.append(ctx, event(newTrace(t)))
		if n := len(x.spans()["append meterplex.usage.event.recorded"]); n != 0 {
			t.Errorf("%d spans of events before the end", n)
		}
		end(fails)
	}
	if n := len(x.spans()["append meterplex.usage.event.recorded"]); n != 1 {
		t.Errorf("%d spans of events, want one", n)
	}
}
