package tracing

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	metric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/meterplex/meterplex/events"
)

// Handler makes a span of each request to the API whose trace is sampled, and none of probes and scrapes. The span's name
// has the method; Routed adds the route. The library collects the attributes of a span before it samples, so that requests
// that are not sampled pass it by.
func (t *Tracing) Handler(next http.Handler) http.Handler {
	spanned := t.spanned(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/") {
			next.ServeHTTP(w, r)
			return
		}
		ctx := incoming{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		id := trace.SpanContextFromContext(ctx).TraceID()
		if !id.IsValid() {
			id, ctx = newRoot(ctx, t.sampler)
		}
		if t.sampler.samples(id) {
			spanned.ServeHTTP(w, r.WithContext(ctx))
		} else {
			next.ServeHTTP(w, r.WithContext(ctx))
		}
	})
}

// newRoot draws the trace of a request without one. A sampled request has no parent; the others have a span id that no
// collector sees.
func newRoot(ctx context.Context, s sampler) (trace.TraceID, context.Context) {
	of := trace.SpanContextConfig{}
	of.TraceID, of.SpanID = spanIDs{}.NewIDs(ctx)
	if s.samples(of.TraceID) {
		of.SpanID = trace.SpanID{}
	}
	return of.TraceID, trace.ContextWithSpanContext(ctx, trace.NewSpanContext(of))
}

func (t *Tracing) spanned(next http.Handler) http.Handler {
	return otelhttp.NewHandler(next, "", otelhttp.WithTracerProvider(t.provider), otelhttp.WithMeterProvider(metric.NewMeterProvider()),
		otelhttp.WithPropagators(incoming{}), otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
			return methodOf(r.Method)
		}))
}

// methodOf keeps methods of a client's invention out of names.
func methodOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "HTTP"
}

// Trace returns the trace of the request's span, which is also that of a request that is not sampled.
func (t *Tracing) Trace(ctx context.Context) (uuid.UUID, bool) {
	sc := trace.SpanContextFromContext(ctx)
	return uuid.UUID(sc.TraceID()), sc.IsValid()
}

// Routed names the span of the request by its route.
func (t *Tracing) Routed(ctx context.Context, method, pattern string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetName(methodOf(method) + " " + pattern)
		span.SetAttributes(attribute.String("http.route", pattern))
	}
}

// incoming reads the trace context of a request. It accepts what the API accepts as the correlation of events, and
// ignores the sampled flag. It injects nothing.
type incoming struct{}

// maxTraceState is the length that W3C Trace Context asks to propagate. A longer one is left out: each span repeats it.
const maxTraceState = 512

// Extract implements propagation.TextMapPropagator.
func (incoming) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	header, ok := carrier.(propagation.HeaderCarrier)
	if !ok || len(header["Traceparent"]) != 1 {
		return ctx
	}
	id, span, ok := events.ParseTraceParent(header["Traceparent"][0])
	if !ok {
		return ctx
	}
	of := trace.SpanContextConfig{TraceID: trace.TraceID(id), SpanID: span, Remote: true}
	if state := strings.Join(header["Tracestate"], ","); len(state) <= maxTraceState {
		of.TraceState, _ = trace.ParseTraceState(state) // a malformed one is ignored, as the standard requires
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(of))
}

// Inject implements propagation.TextMapPropagator.
func (incoming) Inject(context.Context, propagation.TextMapCarrier) {}

// Fields implements propagation.TextMapPropagator.
func (incoming) Fields() []string { return []string{"traceparent", "tracestate"} }
