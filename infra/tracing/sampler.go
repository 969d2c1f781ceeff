package tracing

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// sampler samples by the trace id alone, so that every instance with the same ratio decides alike. It does not read the
// flags of a parent: a client cannot force its traces. It reads the last 7 bytes, which W3C Trace Context declares to be
// random, as newer SDKs do. The library's own ratio reads the bytes 8 to 15: in a trace id that is a UUID they begin with
// fixed bits, so that it would sample none of those below a ratio of 0.5.
type sampler struct {
	from  uint64 // the least value that is sampled
	ratio float64
}

const randomBits = 56

func newSampler(ratio float64) sampler {
	return sampler{uint64((1 - ratio) * (1 << randomBits)), ratio}
}

func (s sampler) samples(id trace.TraceID) bool {
	return binary.BigEndian.Uint64(id[8:])&(1<<randomBits-1) >= s.from
}

// ShouldSample implements sdk.Sampler.
func (s sampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	result := sdk.SamplingResult{Decision: sdk.Drop, Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
	if s.samples(p.TraceID) {
		result.Decision = sdk.RecordAndSample
	}
	return result
}

// Description implements sdk.Sampler.
func (s sampler) Description() string { return fmt.Sprintf("TraceID{%g}", s.ratio) }

// spanIDs makes random ids, except for the span of an event, whose id follows from its eventId.
type spanIDs struct{}

type spanIDKey struct{}

// withSpanID makes the next span that starts in the context have an id.
func withSpanID(ctx context.Context, id trace.SpanID) context.Context {
	return context.WithValue(ctx, spanIDKey{}, id)
}

// NewIDs implements sdk.IDGenerator, for a span without a parent.
func (g spanIDs) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:8], rand.Uint64())
		binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdk.IDGenerator.
func (spanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) (id trace.SpanID) {
	if id, ok := ctx.Value(spanIDKey{}).(trace.SpanID); ok {
		return id
	}
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}
