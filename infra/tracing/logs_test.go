package tracing

import (
	"context"
	"log/slog"
	"strings"
	"testing"
)

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
	if id := s.SpanContext().TraceID().String(); !strings.HasSuffix(lines[0], "a=1 trace="+id) || !strings.HasSuffix(lines[1], "trace=own") || strings.Contains(lines[2], "trace=") {
		t.Errorf("logged\n%s", text.String())
	}
}
