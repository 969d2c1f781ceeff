package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

const livePath = Prefix + "/live/stream"

// TestStream_TextOfAnEventCannotEndIt: a carriage return ends a field of an event, so that a name could add an id or another event.
func TestStream_TextOfAnEventCannotEndIt(t *testing.T) {
	f := newFixture(t)
	f.api = func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "retry: 1000\n\n: alive\nid: 1-1\n\nid: 1-2\ndata: {\"text\":\"<i>a\\rid: forged\\r\\revent: forged\\r\\n\\r\\ndata: b\"}\n\n")
	}
	got := f.get(livePath, f.session).Body.String()
	for line := range strings.Lines(strings.ReplaceAll(got, "\r", "\n")) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && line != "retry: 1000" && line != ": alive" && line != "id: 1-1" && line != "id: 1-2" && !strings.HasPrefix(line, "data: ") {
			t.Errorf("the line %q is no data", line)
		}
	}
	if strings.Contains(got, "<i>") || !strings.Contains(got, "data: <p>&lt;i&gt;a") || strings.Contains(got, "\r") || strings.Count(got, "\n\n") != 3 {
		t.Errorf("the events are %q", got)
	}
}

// TestStream_DoesNotUseTheSession: a browser that connects again by itself is not a user who reads.
func TestStream_DoesNotUseTheSession(t *testing.T) {
	f := newFixture(t)
	f.api = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "data: {}\n\n") }
	for range 8 {
		before := f.now()
		f.now = func() time.Time { return before.Add(4 * time.Minute) }
		f.get(livePath, f.session)
	}
	if got := f.get(livePath, f.session); got.Code != http.StatusUnauthorized {
		t.Errorf("after 32 minutes without a page, the stream gives %d", got.Code)
	}
}

// TestStream_OfTooManyViewersIsRefused, and HEAD of a stream ends.
func TestStream_OfTooManyViewersIsRefused(t *testing.T) {
	f := newFixture(t)
	f.api = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "data: {}\n\n") }
	for range maxViewers - 1 {
		if _, err := f.viewers.enter(nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.get(livePath, f.session); got.Code != http.StatusOK {
		t.Errorf("viewer %d gets %d", maxViewers, got.Code)
	}
	leave, _ := f.viewers.enter(nil)
	if got := f.get(livePath, f.session); got.Code != http.StatusServiceUnavailable || !strings.Contains(got.Body.String(), "<code>overloaded</code>") || !strings.Contains(got.Body.String(), "256 live pages are open") {
		t.Errorf("viewer %d gets %d:\n%s", maxViewers+1, got.Code, got.Body)
	}
	leave()
	f.api = func(http.ResponseWriter, *http.Request) { t.Error("HEAD opens the stream") }
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodHead, livePath, nil)
	r.Header.Set("Cookie", f.session)
	f.routes["GET "+livePath].ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Body.Len() > 0 {
		t.Errorf("HEAD gives %d %q", w.Code, w.Body)
	}
}

// TestStream_OfABrowserThatDoesNotReadEnds: an event that nobody reads does not hold a viewer's place.
func TestStream_OfABrowserThatDoesNotReadEnds(t *testing.T) {
	f := newFixture(t)
	f.pages[len(f.pages)-1].streams[0].within = 100 * time.Millisecond
	ended := make(chan error, 1)
	f.api = func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := fmt.Fprintf(w, "data: {\"text\":%q}\n\n", strings.Repeat("x", 64<<10)); err != nil {
				ended <- err
				return
			}
		}
		ended <- r.Context().Err()
	}
	silent := f.dial(t)
	fmt.Fprintf(silent, "GET %s HTTP/1.1\r\nHost: console\r\nCookie: %s\r\n\r\n", livePath, f.session)
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the stream ends by %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the stream waits for a browser that does not read")
	}
	for end := time.Now().Add(time.Minute); f.viewers.open() != 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if n := f.viewers.open(); n != 0 {
		t.Errorf("%d viewers are left", n)
	}
}
