package tracing

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/google/uuid"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// sampler samples by the trace id and a secret of the log, so that every instance with the same ratio decides alike. A client cannot choose
// to be traced: it does not know which ids are sampled, and the flags of a parent are not read. All bits of an id count: in a UUID some are
// fixed.
type sampler struct {
	from   uint64 // the least value that is sampled
	ratio  float64
	secret *atomic.Pointer[cipher.Block]
}

const randomBits = 56

// newSampler returns a sampler with the secret Nil.
func newSampler(ratio float64) sampler {
	s := sampler{uint64((1 - ratio) * (1 << randomBits)), ratio, &atomic.Pointer[cipher.Block]{}}
	s.use(uuid.Nil)
	return s
}

// use sets the secret.
func (s sampler) use(secret uuid.UUID) {
	key := sha256.Sum256(append([]byte("sampling of traces"), secret[:]...))
	block, _ := aes.NewCipher(key[:]) // a key of 32 bytes is valid
	s.secret.Store(&block)
}

// samples encrypts the id, which is as long as a block of the cipher: 20 ns.
func (s sampler) samples(id trace.TraceID) bool {
	var mixed [aes.BlockSize]byte
	(*s.secret.Load()).Encrypt(mixed[:], id[:])
	return binary.BigEndian.Uint64(mixed[8:])&(1<<randomBits-1) >= s.from
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
