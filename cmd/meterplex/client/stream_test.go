package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAStreamThatBreaksAfterSilenceIsRetried: the time for retries begins with the failure, and failures without progress share it.
func TestAStreamThatBreaksAfterSilenceIsRetried(t *testing.T) {
	for _, c := range []struct {
		name string
		runs []func(progress func()) // before each failure; then failures without progress
	}{
		{"no progress", nil},
		{"silence after progress", []func(func()){func(progress func()) { progress(); time.Sleep(20 * time.Minute) }}},
		{"silence without progress", []func(func()){func(func()) { time.Sleep(time.Minute) }}},
		{"progress after failures", []func(func()){func(func()) {}, func(func()) {}, func(progress func()) {
			time.Sleep(time.Minute)
			progress()
			time.Sleep(time.Minute)
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := New("http://127.0.0.1:1", "", 15*time.Second, func(string, ...any) {})
				calls, failed := 0, time.Time{}
				err := cl.Persist(t.Context(), true, func(progress func()) error {
					if calls < len(c.runs) {
						c.runs[calls](progress)
					}
					if calls++; calls <= max(1, len(c.runs)) {
						failed = time.Now()
					}
					return &Unreachable{Cause: errors.New("broken")}
				})
				// A wait is 10 s at most, and the first ones are short.
				if after := time.Since(failed); err == nil || calls < len(c.runs)+3 || after < 5*time.Second || after > 15*time.Second {
					t.Errorf("%d calls, the last %s after the failure: %v", calls, after, err)
				}
			})
		})
	}
}

// TestAStreamThatNeverBegins ends: the limit on silence holds before the headers, too.
func TestAStreamThatNeverBegins(t *testing.T) {
	for name, begin := range map[string]func(http.ResponseWriter){
		"no headers": func(http.ResponseWriter) {},
		"no lines":   func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"no problem": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusBadRequest)
			_ = http.NewResponseController(w).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				begin(w)
				select {
				case <-r.Context().Done():
				case <-done:
				}
			}))
			defer s.Close()
			defer close(done)
			c := New(s.URL, "", time.Second, t.Logf)
			defer c.http.CloseIdleConnections()
			c.quiet = 50 * time.Millisecond
			ended := make(chan error, 1)
			go func() {
				ended <- c.Stream(t.Context(), "/events/stream", nil, nil, func(string) error { return nil })
			}()
			select {
			case err := <-ended:
				if _, ok := errors.AsType[*Unreachable](err); !ok || !strings.Contains(err.Error(), "silent for 50ms") {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("it does not end")
			}
		})
	}
}
