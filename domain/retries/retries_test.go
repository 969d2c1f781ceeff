package retries

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFailuresOfTheFirst30SecondsAreDebugAndLaterOnesRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &bytes.Buffer{}
		plain := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		l := New(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: plain})), slog.LevelWarn,
			"reading fails", "reading works")
		stopped, stop := context.WithCancel(t.Context())
		stop()
		down, broken := errors.New("down"), errors.New("broken")
		for _, c := range []struct {
			ctx   context.Context
			pause time.Duration
			err   error
			topic string
			want  string
		}{
			{t.Context(), 0, nil, "a", ""},
			{t.Context(), 0, down, "a", "level=DEBUG msg=\"reading fails\" topic=a error=down"},
			{t.Context(), 0, nil, "a", "level=DEBUG msg=\"reading works\" topic=a"},
			{t.Context(), 29 * time.Second, down, "a", "level=DEBUG msg=\"reading fails\" topic=a error=down"},
			{t.Context(), time.Second, down, "a", "level=WARN msg=\"reading fails\" topic=a error=down"},
			{t.Context(), 0, down, "a", ""},
			{t.Context(), 0, down, "b", "level=WARN msg=\"reading fails\" topic=b error=down"},
			{stopped, 0, down, "c", ""},
			{t.Context(), 0, nil, "a", "level=INFO msg=\"reading works\" topic=a"},
			{t.Context(), 0, nil, "a", ""},
			{t.Context(), time.Hour, down, "a", "level=WARN msg=\"reading fails\" topic=a error=down"},
			{t.Context(), time.Minute - 1, broken, "a", ""},
			{t.Context(), 1, broken, "a", "level=WARN msg=\"reading fails\" topic=a error=broken"},
			{t.Context(), 10*time.Minute - 1, broken, "a", ""},
			{t.Context(), 1, broken, "a", "level=WARN msg=\"reading fails\" topic=a error=broken"},
		} {
			time.Sleep(c.pause)
			out.Reset()
			if l.Report(c.ctx, c.err, "topic", c.topic); strings.TrimSpace(out.String()) != c.want {
				t.Errorf("after %s, %v of %s: logged %q, want %q", c.pause, c.err, c.topic, out.String(), c.want)
			}
		}
		if len(l.streaks) != 1 {
			t.Errorf("%d streaks are kept: b has not been tried for an hour", len(l.streaks))
		}
	})
}
