package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// tracedEvent is an event of the log, as the API returns it.
type tracedEvent struct{ EventID, EventType, CorrelationID string }

// span is the id of the event's span: the last 8 bytes of its id.
func (e *tracedEvent) span() string { return strings.ReplaceAll(e.EventID, "-", "")[16:] }

// trace is the id of the event's trace.
func (e *tracedEvent) trace() string { return strings.ReplaceAll(e.CorrelationID, "-", "") }

// ofType returns the only event of a trace with a type.
func ofType(w *deployment, at *instance, trace, eventType string) (e tracedEvent) {
	w.t.Helper()
	var page struct{ Data []tracedEvent }
	within(w.t, "the trace has one "+eventType, func(context.Context) (bool, string) {
		w.ask(w.operator, http.MethodGet, at, "/api/v1/events?subject="+eventType+"&correlationId="+trace, nil, &page, http.StatusOK)
		return len(page.Data) == 1, fmt.Sprintf("%+v", page.Data)
	})
	return page.Data[0]
}

// awaitSpan waits for a span of a trace.
func awaitSpan(t *testing.T, c *collector, trace, which string, is func(s *span) bool) (found span) {
	t.Helper()
	within(t, "the trace has the span: "+which, func(context.Context) (bool, string) {
		all := c.trace(trace)
		for i := range all {
			if is(&all[i]) {
				found = all[i]
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", all)
	})
	return found
}

// batchOf is a span of a consumer or the relay with a link to an event.
func batchOf(name string, e *tracedEvent) func(s *span) bool {
	return func(s *span) bool {
		return s.Name == "process "+name && slices.Contains(s.Links, spanRef{e.trace(), e.span()})
	}
}

// appendOf is the span of an event below another span.
func appendOf(e *tracedEvent, parent string) func(s *span) bool {
	return func(s *span) bool {
		return s.Name == "append "+e.EventType && s.Trace == e.trace() && s.ID == e.span() && s.Parent == parent
	}
}

// One trace covers the request, the log, the pipe and each projection, across two processes, and through a rewind.
func TestARequestIsOneTraceAcrossProcesses(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w, c := newDeployment(t), newCollector(t)
	front := w.serve("api,relay", c.settings()...)
	w.serve("validator,aggregator,deadletter,commands,projector", c.settings()...)
	w.catalogue(front)
	x := w.createTenants(front, 1)[0]
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	batch := events("traced", 1, "api_calls")
	x.ledger.sending(batch)
	var answer struct{ Events []verdict }
	w.ask(x.key, http.MethodPost, front, "/api/v1/usage/events", object{"events": batch}, &answer, http.StatusAccepted,
		"Traceparent", "00-"+trace+"-"+parent+"-00", "Tracestate", "vendor=1")
	must.OK(t, x.ledger.answered(batch, answer.Events))

	recorded, validated := ofType(w, front, trace, "meterplex.usage.event.recorded"),
		ofType(w, front, trace, "meterplex.usage.event.validated")
	request := awaitSpan(t, c, trace, "the request", func(s *span) bool { return s.Name == "POST /api/v1/usage/events" })
	if request.Trace != trace || request.Parent != parent || request.State != "vendor=1" {
		t.Errorf("the request is %+v", request)
	}
	awaitSpan(t, c, trace, "the recorded event, below the request", appendOf(&recorded, request.ID))
	relayed := awaitSpan(t, c, trace, "its relay", batchOf("relay", &recorded))
	decided := awaitSpan(t, c, trace, "its validation", batchOf("meterplex-usage-validator", &recorded))
	awaitSpan(t, c, trace, "the verdict, below the validation", appendOf(&validated, decided.ID))
	awaitSpan(t, c, trace, "the relay of the verdict", batchOf("relay", &validated))
	counted := awaitSpan(t, c, trace, "its aggregation", batchOf("meterplex-usage-aggregator", &validated))
	if relayed.Instance != request.Instance || decided.Instance == request.Instance || counted.Instance != decided.Instance {
		t.Errorf("request %s, relay %s, validator %s, aggregator %s", request.Instance, relayed.Instance, decided.Instance,
			counted.Instance)
	}
	if decided.Trace != trace || decided.Parent != recorded.span() {
		t.Errorf("the batch of one trace is %+v", decided)
	}

	// A rewind publishes the same bytes, so that the same spans are named again.
	w.drain()
	relays := countBatches(c, &recorded)
	w.cli(front, w.operator).replay("rewind", "--to-start")
	w.drain()
	within(t, "the relay's second batch has a link to the event", func(context.Context) (bool, string) {
		n := countBatches(c, &recorded)
		return n > relays, fmt.Sprint(n)
	})
	checkTraceParents(w, &recorded, &validated)
	w.finish()
}

// countBatches counts the relay's batches with an event.
func countBatches(c *collector, e *tracedEvent) (n int) {
	is := batchOf("relay", e)
	for _, s := range c.trace(e.trace()) {
		if is(&s) {
			n++
		}
	}
	return n
}

// checkTraceParents compares the traceparents of all records of events, which are on their topics twice or more.
func checkTraceParents(w *deployment, list ...*tracedEvent) {
	w.t.Helper()
	found := map[string][]string{}
	eachRecord(w, func(r *kgo.Record) {
		var id, parent string
		for _, h := range r.Headers {
			switch h.Key {
			case "mp-event-id":
				id = string(h.Value)
			case "traceparent":
				parent = string(h.Value)
			}
		}
		found[id] = append(found[id], parent)
	})
	for _, e := range list {
		want := "00-" + e.trace() + "-" + e.span() + "-00"
		if got := found[e.EventID]; len(got) < 2 || slices.ContainsFunc(got, func(p string) bool { return p != want }) {
			w.t.Errorf("the records of %s have the traceparents %q, want %s", e.EventID, got, want)
		}
	}
}

// The retry of a dead letter is one trace from its request to the figure, with a link to the trace of the rejected event. A
// third process, without traces, accepts the event: its trace goes on where traces are on.
func TestTheRetryOfADeadLetterIsOneTrace(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w, c := newDeployment(t), newCollector(t)
	front, other := w.serve("api,relay", c.settings()...), w.serve("api")
	w.serve("validator,aggregator,deadletter,commands,projector", c.settings()...)
	w.catalogue(front)
	x := w.createTenants(front, 1)[0]
	acceptThenReject(w, other, front, x)
	w.drain()
	letter := awaitLetter(w, front, x, "FAILED")
	const trace = "7bf92f3577b34da6a3ce929d0e0e4736"
	w.ask(w.operator, http.MethodPost, front, "/api/v1/dead-letters/"+letter.ID+"/retry", object{"reason": "renewed"}, nil,
		http.StatusAccepted,
		"Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	awaitLetter(w, front, x, "RESOLVED")

	requested := ofType(w, front, trace, "meterplex.dead_letters.dead_letter.retry_requested")
	retried, validated := ofType(w, front, trace, "meterplex.usage.event.retried"),
		ofType(w, front, trace, "meterplex.usage.event.validated")
	request := awaitSpan(t, c, trace, "the request", func(s *span) bool { return strings.HasPrefix(s.Name, "POST /api/v1/dead-letters/") })
	awaitSpan(t, c, trace, "the requested retry", appendOf(&requested, request.ID))
	awaitSpan(t, c, trace, "its relay", batchOf("relay", &requested))
	executed := awaitSpan(t, c, trace, "its execution", batchOf("meterplex-command-handler", &requested))
	again := awaitSpan(t, c, trace, "the retried event", appendOf(&retried, executed.ID))
	decided := awaitSpan(t, c, trace, "its validation", batchOf("meterplex-usage-validator", &retried))
	awaitSpan(t, c, trace, "its verdict", appendOf(&validated, decided.ID))
	awaitSpan(t, c, trace, "its aggregation", batchOf("meterplex-usage-aggregator", &validated))
	if len(again.Links) != 1 {
		t.Fatalf("the retried event has the links %+v", again.Links)
	}
	rejected := ofType(w, front, again.Links[0].Trace, "meterplex.usage.event.recorded")
	if rejected.span() != again.Links[0].ID {
		t.Errorf("the retried event has a link to %+v, want %s", again.Links[0], rejected.span())
	}
	awaitSpan(t, c, rejected.trace(), "the rejection", batchOf("meterplex-usage-validator", &rejected))
	w.finish()
}
