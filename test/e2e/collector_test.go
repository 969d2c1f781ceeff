package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector receives the spans of instances, as an OpenTelemetry collector does.
type collector struct {
	*httptest.Server

	mu     sync.Mutex
	spans  []span
	bodies []byte
}

// span is a span as it was received.
type span struct {
	Instance, Name, Trace, ID, Parent, State string
	Links                                    []spanRef
	Attributes                               map[string]string
}

type spanRef struct{ Trace, ID string }

func newCollector(t testing.TB) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var in otlp.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &in)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		c.receive(body, &in)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

// settings are those of an instance that exports all of its traces, soon.
func (c *collector) settings() []string {
	return []string{"METERPLEX_TRACE_RATIO=1", "OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=50"}
}

func (c *collector) receive(body []byte, in *otlp.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies = append(c.bodies, body...)
	for _, of := range in.ResourceSpans {
		var instance string
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.instance.id" {
				instance = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				got := span{instance, s.Name, hex.EncodeToString(s.TraceId), hex.EncodeToString(s.SpanId),
					hex.EncodeToString(s.ParentSpanId), s.TraceState, nil, map[string]string{}}
				for _, l := range s.Links {
					got.Links = append(got.Links, spanRef{hex.EncodeToString(l.TraceId), hex.EncodeToString(l.SpanId)})
				}
				for _, a := range s.Attributes {
					got.Attributes[a.Key] = a.Value.GetStringValue()
				}
				c.spans = append(c.spans, got)
			}
		}
	}
}

// received returns the bytes of all spans.
func (c *collector) received() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.bodies)
}

// trace returns the spans that belong to a trace, or have a link to it.
func (c *collector) trace(id string) (list []span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Trace == id || slices.ContainsFunc(s.Links, func(l spanRef) bool { return l.Trace == id }) {
			list = append(list, s)
		}
	}
	return list
}
