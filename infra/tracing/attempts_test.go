package tracing

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/meterplex/meterplex/events"
)

// An attempt is a client's span below the event that it delivers. Only an answer 2xx is no error.
func TestAnAttemptIsBelowItsEvent(t *testing.T) {
	x := newTraced(t, 1, nil)
	of := events.TracedEvent{Trace: newTrace(t), EventID: uuid.Must(uuid.NewV7())}
	for status, want := range map[int]codes.Code{0: codes.Error, 200: codes.Unset, 204: codes.Unset, 302: codes.Error, 410: codes.Error,
		500: codes.Error} {
		ctx, end := x.Attempt(t.Context(), "send webhook", of)
		if !trace.SpanFromContext(ctx).IsRecording() {
			t.Fatal("the context of the request has no span")
		}
		end(status)
		s := x.one()
		x.to.Reset()
		if s.Name != "send webhook" || s.SpanKind != trace.SpanKindClient || s.SpanContext.TraceID() != trace.TraceID(of.Trace) ||
			s.Parent.SpanID() != events.SpanID(of.EventID) {
			t.Errorf("%s of kind %s in %s below %s", s.Name, s.SpanKind, s.SpanContext.TraceID(), s.Parent.SpanID())
		}
		if found := strings.Contains(fmt.Sprint(s.Attributes), "http.response.status_code"); s.Status.Code != want ||
			found != (status != 0) {
			t.Errorf("status %d: %+v, attributes %v", status, s.Status, s.Attributes)
		}
	}
}

// An event without a trace, or whose trace is not sampled, has no span of its attempts.
func TestAnAttemptIsSampledByTheTraceOfItsEvent(t *testing.T) {
	const ratio = 0.3
	x, of := newTraced(t, ratio, nil), newSampler(ratio)
	for range 50 {
		e := events.TracedEvent{Trace: newTrace(t), EventID: uuid.Must(uuid.NewV7())}
		_, end := x.Attempt(context.Background(), "send push", e)
		end(200)
		x.spans()
		if sampled := len(x.to.GetSpans()) == 1; sampled != of.samples(trace.TraceID(e.Trace)) {
			t.Errorf("%s: sampled %v", e.Trace, sampled)
		}
		x.to.Reset()
	}
	_, end := x.Attempt(context.Background(), "send push", events.TracedEvent{EventID: uuid.New()})
	end(200)
	if x.spans(); len(x.to.GetSpans()) != 0 {
		t.Error("an event without a trace has a span")
	}
}
