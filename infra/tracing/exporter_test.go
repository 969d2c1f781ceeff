package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/meterplex/meterplex/internal/must"
)

// A collector that does not answer delays no span, and a stop by 2 s. Spans beyond the queue are dropped and counted.
func TestADeadCollectorDelaysNothing(t *testing.T) {
	hangs := make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))
	defer collector.Close()
	defer close(hangs)
	transport := &http.Transport{DisableKeepAlives: true}
	to, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(collector.URL),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: transport}))
	must.OK(t, err)
	x := newTraced(t, 1, to)
	const spans = 20_000
	began := time.Now()
	for range spans {
		_, s := x.tracer.Start(context.Background(), "s")
		s.End()
	}
	if took := time.Since(began); took > time.Minute { // each export waits 10 s
		t.Errorf("%d spans took %s", spans, took)
	}
	began = time.Now()
	x.Stop()
	if took := time.Since(began); took > stopTime+time.Minute/2 {
		t.Errorf("the stop took %s", took)
	}
	if x.counted(Queued) != spans || x.counted(Exported) != 0 {
		t.Errorf("%d queued, %d exported", x.counted(Queued), x.counted(Exported))
	}
	if !strings.Contains(x.logs.String(), "the last spans were not exported") {
		t.Errorf("logged %s", x.logs)
	}
}

// refusing fails while it refuses.
type refusing struct{ refuses atomic.Bool }

func (r *refusing) ExportSpans(context.Context, []sdk.ReadOnlySpan) error {
	if r.refuses.Load() {
		return errors.New("refused")
	}
	return nil
}

func (*refusing) Shutdown(context.Context) error { return nil }

// Failures are logged once for each outage, and each span is counted.
func TestAnOutageOfTheCollectorIsLoggedOnce(t *testing.T) {
	to := &refusing{}
	x := newTraced(t, 1, to)
	export := func() {
		_, s := x.tracer.Start(context.Background(), "s")
		s.End()
		if err := x.provider.ForceFlush(context.Background()); err != nil {
			t.Error(err)
		}
	}
	for _, refuses := range []bool{true, true, true, false, false} {
		to.refuses.Store(refuses)
		export()
	}
	if text := x.logs.String(); strings.Count(text, "accepts no spans") != 1 || strings.Count(text, "accepts spans again") != 1 ||
		!strings.Contains(text, "dropped=3") {
		t.Errorf("logged %s", text)
	}
	if x.counted(Queued) != 5 || x.counted(Failed) != 3 || x.counted(Exported) != 2 {
		t.Errorf("counted %v", x.counts)
	}
}

// A stop exports the spans that wait.
func TestAStopExportsTheLastSpans(t *testing.T) {
	x := newTraced(t, 1, nil)
	_, s := x.tracer.Start(context.Background(), "last")
	s.End()
	x.Stop()
	if all := x.to.GetSpans(); len(all) != 1 || all[0].Name != "last" {
		t.Errorf("exported %v", all)
	}
}

// The environment is checked before it is used, and no value of a header is repeated.
func TestTheEnvironmentOfTheExporterIsChecked(t *testing.T) {
	for _, c := range []struct {
		name, value, want string
	}{
		{"", "", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318/path", ""},
		{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=canary,x=y%20z", ""},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "must be http://host:port"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://u:canary@collector", "must be http://host:port"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://\x00canary", "must be http://host:port"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "canary", "must be name=value"},
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=1,canary", "must be name=value"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=%zz-canary", "must be name=value"},
		{"OTEL_EXPORTER_OTLP_HEADERS", " =canary", "must be name=value"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "only exports by http/protobuf"},
	} {
		_, err := checkEnvironment(func(name string) string {
			if name == c.name {
				return c.value
			}
			return ""
		})
		if text := fmt.Sprint(err); (err == nil) != (c.want == "") || err != nil && (!strings.Contains(text, c.want) ||
			!strings.Contains(text, c.name) || strings.Contains(text, "canary")) {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
}

// The sampler of the environment has no effect: every instance decides by METERPLEX_TRACE_RATIO.
func TestTheSamplerIsNotThatOfTheEnvironment(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		t.Fatal("not set")
	}
	x := newTraced(t, 1e-9, nil)
	ctx, s := x.tracer.Start(context.Background(), "s")
	s.End()
	if len(x.spans()) != 0 || trace.SpanContextFromContext(ctx).IsSampled() {
		t.Error("the sampler of the environment decides")
	}
}
