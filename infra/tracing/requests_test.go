package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// ask sends a request through a traced handler, and returns the trace that the handler finds.
func (x *traced) ask(header http.Header) (found uuid.UUID, status int) {
	x.t.Helper()
	r := httptest.NewRequest("POST", "/api/v1/usage/events?key=canary-query", strings.NewReader("canary-body"))
	r.Header = header
	w := httptest.NewRecorder()
	x.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := x.Trace(r.Context())
		if !ok {
			x.t.Error("a request has no trace")
		}
		found = id
		x.Routed(r.Context(), r.Method, "/api/v1/usage/events")
		w.WriteHeader(http.StatusAccepted)
		if err := http.NewResponseController(w).Flush(); err != nil {
			x.t.Errorf("a traced answer cannot be flushed: %v", err)
		}
	})).ServeHTTP(w, r)
	return found, w.Code
}

// Headers of any content give an answer. Those that W3C Trace Context declares invalid begin a new trace.
func TestInvalidTraceHeadersBeginANewTrace(t *testing.T) {
	x := newTraced(t, 1, nil)
	valid := uuid.MustParse("0af7651916cd43dd8448eb211c80319c")
	for name, c := range map[string]struct {
		parent, state []string
		kept          bool
		wantState     string
	}{
		"valid":               {parent: []string{parent}, kept: true},
		"unknown flags":       {parent: []string{parent[:53] + "ff"}, kept: true},
		"a later version":     {parent: []string{"cc" + parent[2:]}, kept: true},
		"with a state":        {parent: []string{parent}, state: []string{"a=1", "b=2"}, kept: true, wantState: "a=1,b=2"},
		"a malformed state":   {parent: []string{parent}, state: []string{"a=1,,=;\x00"}, kept: true},
		"4 kB of state":       {parent: []string{parent}, state: []string{strings.Repeat("abcdefgh=01234567,", 240) + "z=1"}, kept: true},
		"4 kB in one member":  {parent: []string{parent}, state: []string{"a=" + strings.Repeat("x", 4096)}, kept: true},
		"no header":           {},
		"zeros":               {parent: []string{"00-" + strings.Repeat("0", 32) + parent[35:]}},
		"no parent's span":    {parent: []string{parent[:36] + strings.Repeat("0", 16) + parent[52:]}},
		"capitals":            {parent: []string{strings.ToUpper(parent)}},
		"version ff":          {parent: []string{"ff" + parent[2:]}},
		"two of them":         {parent: []string{parent, parent}},
		"4 kB":                {parent: []string{strings.Repeat(parent, 75)}},
		"malformed":           {parent: []string{"canary"}},
		"a state on its own":  {state: []string{"a=1"}},
		"an empty one":        {parent: []string{""}},
		"spaces around":       {parent: []string{" " + parent}},
		"not ASCII":           {parent: []string{"00-é" + parent[5:]}},
		"more after a dash":   {parent: []string{parent + "-01"}},
		"a byte less":         {parent: []string{parent[:54]}},
		"dashes in the wrong": {parent: []string{strings.Replace(parent, "-", "0", 1)}},
	} {
		header := http.Header{"Traceparent": c.parent, "Tracestate": c.state}
		found, status := x.ask(header)
		s := x.one()
		x.to.Reset()
		if status != http.StatusAccepted || (found == valid) != c.kept || trace.TraceID(found) != s.SpanContext.TraceID() ||
			s.Parent.IsValid() != c.kept {
			t.Errorf("%s: status %d, the API's trace is %s, the span's %s below %s", name, status, found, s.SpanContext.TraceID(),
				s.Parent.SpanID())
		}
		if state := s.SpanContext.TraceState().String(); state != c.wantState {
			t.Errorf("%s: state %.60q, want %q", name, state, c.wantState)
		}
	}
}

// A client cannot force the sampling of its traces, and not prevent it.
func TestTheFlagOfAClientDecidesNothing(t *testing.T) {
	const ratio = 0.2
	x, of := newTraced(t, ratio, nil), newSampler(ratio)
	for range 200 {
		id := newTrace(t)
		for _, flags := range []string{"00", "01"} {
			header := http.Header{"Traceparent": {"00-" + trace.TraceID(id).String() + "-b7ad6b7169203331-" + flags}}
			if found, _ := x.ask(header); found != id {
				t.Fatalf("%s became %s", id, found)
			}
			x.spans()
			if sampled := len(x.to.GetSpans()) > 0; sampled != of.samples(trace.TraceID(id)) {
				t.Fatalf("%s with the flags %s: sampled %v", id, flags, sampled)
			}
			x.to.Reset()
		}
	}
}

// The span of a request has its route, its method and its status, and no header, query or body.
func TestTheSpanOfARequestHoldsNoHeader(t *testing.T) {
	x := newTraced(t, 1, nil)
	x.ask(http.Header{"Authorization": {"Bearer mp_live_canary"}, "Cookie": {"canary"}, "Idempotency-Key": {"canary"},
		"X-Request-Id": {"canary"}})
	s := x.one()
	if s.Name != "POST /api/v1/usage/events" || s.SpanKind != trace.SpanKindServer {
		t.Errorf("%s of kind %s", s.Name, s.SpanKind)
	}
	values := map[string]string{}
	for _, a := range s.Attributes {
		values[string(a.Key)] = a.Value.String()
		if strings.Contains(a.Value.String(), "canary") {
			t.Errorf("%s is %q", a.Key, a.Value.String())
		}
	}
	if values["http.route"] != "/api/v1/usage/events" || values["http.response.status_code"] != "202" {
		t.Errorf("attributes %v", values)
	}
}

// Log lines have the trace that they belong to, once.
func TestLogsHaveTheTrace(t *testing.T) {
	x := newTraced(t, 1, nil)
	ctx, s := x.tracer.Start(context.Background(), "s")
	defer s.End()
	var text strings.Builder
	log := slog.New(Logs(slog.NewTextHandler(&text, nil))).With("a", 1).WithGroup("")
	log.InfoContext(ctx, "one")
	log.InfoContext(ctx, "two", "trace", "own")
	log.InfoContext(context.Background(), "three")
	lines := strings.Split(text.String(), "\n")
	if id := s.SpanContext().TraceID().String(); !strings.HasSuffix(lines[0], "a=1 trace="+id) ||
		!strings.HasSuffix(lines[1], "trace=own") || strings.Contains(lines[2], "trace=") {
		t.Errorf("logged\n%s", text.String())
	}
}
