package tracing

import (
	"math"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// Every instance decides alike, and a UUID as a trace id is sampled as often as a random one: the library's
// TraceIDRatioBased samples none of them at these ratios.
func TestTracesAreSampledByTheirIDs(t *testing.T) {
	ids := map[string]func() trace.TraceID{
		"random": func() trace.TraceID { id, _ := spanIDs{}.NewIDs(t.Context()); return id },
		"UUIDv4": func() trace.TraceID { return trace.TraceID(uuid.New()) },
		"UUIDv7": func() trace.TraceID { return trace.TraceID(uuid.Must(uuid.NewV7())) },
	}
	const n = 40_000
	for name, id := range ids {
		for _, ratio := range []float64{0.01, 0.1, 0.5, 1} {
			of, sampled := newSampler(ratio), 0
			for range n {
				of := of
				if id := id(); of.samples(id) {
					sampled++
					if !newSampler(ratio).samples(id) || !newSampler(min(1, 2*ratio)).samples(id) {
						t.Fatalf("%s: %s is sampled at %g, and not at a ratio as high by another instance", name, id, ratio)
					}
				}
			}
			if deviation := math.Sqrt(n * ratio * (1 - ratio)); math.Abs(float64(sampled)-n*ratio) > 6*deviation {
				t.Errorf("%s: %d of %d are sampled at %g", name, sampled, n, ratio)
			}
		}
	}
}

func TestTheExtremesOfTheRatio(t *testing.T) {
	last, first := trace.TraceID{}, trace.TraceID{}
	for i := range last {
		last[i] = 0xff
	}
	first[0] = 1
	if all := newSampler(1); !all.samples(first) || !all.samples(last) {
		t.Error("a ratio of 1 leaves out traces")
	}
	if few := newSampler(1e-9); few.samples(first) || few.samples(last) {
		t.Error("a ratio of 1e-9 samples the first or the last id")
	}
}

// TestAClientCannotChooseToBeTraced: an id is sampled by one log and not by another, whose secret differs.
func TestAClientCannotChooseToBeTraced(t *testing.T) {
	last := trace.TraceID{0: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
	sampled := 0
	for n := range 1000 {
		of := newSampler(0.1)
		of.use(uuid.UUID{0: byte(n), 1: byte(n >> 8)})
		if of.samples(last) {
			sampled++
		}
	}
	if sampled < 50 || sampled > 150 {
		t.Errorf("%d of 1000 logs sample the last id at 0.1", sampled)
	}
}
