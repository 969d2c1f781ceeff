package deadline

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// A deadline has passed if one of the clocks says so.
func TestADeadlinePassesByEitherClock(t *testing.T) {
	at := time.Now().Add(time.Minute)
	ctx, cancel := context.WithDeadline(t.Context(), at)
	defer cancel()
	for _, c := range []struct {
		what   string
		ctx    context.Context
		now    time.Time
		passed bool
	}{
		{"before", ctx, at.Add(-1), false},
		{"after", ctx, at, true},
		{"after, by the wall clock", ctx, at.Round(0), true}, // without a monotonic reading, as after a suspension
		{"without one", t.Context(), at, false},
	} {
		if got := Passed(c.ctx, c.now); got != c.passed {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}

// late is a deadline that has passed, whose timer has not ended the context yet: as in a process that goes on after it was frozen.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// A request whose deadline has passed reaches no handler, also if its connection is open already.
func TestAnOverdueRequestIsNotSent(t *testing.T) {
	var reached atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 {
			reached.Add(1)
		}
	}))
	defer server.Close()
	for _, size := range []int{1, 20_000} { // below and above the buffer of a connection
		for overdue, ctx := range []context.Context{t.Context(), late{t.Context()}} { // the second on the connection of the first
			want := int64(1 - overdue)
			reached.Store(0)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(strings.Repeat("x", size)))
			must.OK(t, err)
			res, err := server.Client().Do(Bound(req))
			if err == nil {
				must.OK(t, res.Body.Close())
			}
			if (err == nil) != (want == 1) || reached.Load() != want {
				t.Errorf("%d bytes: %d requests reached the handler, want %d: %v", size, reached.Load(), want, err)
			}
		}
	}
}
