package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
)

const livePath = Prefix + "/live" + liveSuffix

// reload asks for the live part of a fixture, as a browser that has a version of it.
func (f *fixture) reload(tag string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, livePath, nil)
	r.Header.Set("Cookie", f.session)
	r.Header.Set("If-None-Match", tag)
	f.serve(w, r)
	return w
}

// TestLive_OneReadServesAllVisitors of two seconds, and a browser that has the part gets no body. While its version stays, it is not read
// again.
func TestLive_OneReadServesAllVisitors(t *testing.T) {
	f := newFixture(t)
	var mu sync.Mutex
	text, version, reads, looks := "first", "1", 0, 0
	f.api = func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/version") {
			looks++
			fmt.Fprint(w, version)
			return
		}
		reads++
		fmt.Fprintf(w, `{"text":%q}`, text)
	}
	now := time.Now()
	f.now = func() time.Time { return now }
	var all sync.WaitGroup
	tags := make([]string, 20)
	for n := range tags {
		all.Go(func() {
			got := f.reload("")
			if tags[n] = got.Header().Get("ETag"); got.Code != http.StatusOK || !strings.Contains(got.Body.String(), "first") {
				t.Errorf("visitor %d gets %d %s", n, got.Code, got.Body)
			}
		})
	}
	all.Wait()
	unchanged := func(what string, wantReads, wantLooks int) {
		t.Helper()
		got := f.reload(tags[0])
		if got.Code != http.StatusNotModified || got.Body.Len() > 0 || got.Header().Get("ETag") != tags[0] || reads != wantReads ||
			looks != wantLooks {
			t.Errorf("%s: %d %q after %d reads and %d looks", what, got.Code, got.Body, reads, looks)
		}
	}
	unchanged("at once", 1, 1)
	text, now = "second", now.Add(readEvery)
	unchanged("with the same version", 1, 2)
	version, now = "2", now.Add(readEvery)
	if got := f.reload(tags[0]); got.Code != http.StatusOK || !strings.Contains(got.Body.String(), "second") || reads != 2 {
		t.Errorf("with another version: %d %s after %d reads", got.Code, got.Body, reads)
	}
}

// TestLive_CachesABoundedNumberOfFragments, each by its filters, until it is not requested any more.
func TestLive_CachesABoundedNumberOfFragments(t *testing.T) {
	f := newFixture(t)
	reads := 0
	f.api = func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/version") {
			reads++
		}
		fmt.Fprint(w, `{"text":"x"}`)
	}
	for n := range maxFragments + 10 {
		f.Get(livePath+"?filter="+fmt.Sprint(n), f.session)
	}
	if n := len(f.fragments.all); n != maxFragments || reads != maxFragments+10 {
		t.Errorf("%d fragments are cached after %d reads", n, reads)
	}
	later := time.Now().Add(fragmentIdle + time.Second)
	f.now = func() time.Time { return later }
	f.Get(livePath+"?filter=b", f.session)
	if n := len(f.fragments.all); n != 1 {
		t.Errorf("%d fragments are cached after a time without requests", n)
	}
}

// TestLive_ARefusalIsOfItsVisitorAlone, and a visitor who has gone does not wait.
func TestLive_ARefusalIsOfItsVisitorAlone(t *testing.T) {
	f := newFixture(t)
	refuse, begun, goOn := true, make(chan struct{}, 1), make(chan struct{})
	f.api = func(w http.ResponseWriter, _ *http.Request) {
		if refuse {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"status":503,"code":"overloaded","title":"Too many reads","detail":"D"}`)
			return
		}
		select {
		case begun <- struct{}{}:
		default:
		}
		<-goOn
		fmt.Fprint(w, `{"text":"x"}`)
	}
	if got := f.reload(""); got.Code != http.StatusServiceUnavailable ||
		!strings.Contains(got.Body.String(), "<strong>Too many reads</strong>") || got.Header().Get("ETag") != "" {
		t.Errorf("%d %s", got.Code, got.Body)
	}
	refuse = false
	read := make(chan int, 1)
	go func() { read <- f.reload("").Code }()
	<-begun
	ctx, leave := context.WithCancel(t.Context())
	leave()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, livePath, nil).WithContext(ctx)
	r.Header.Set("Cookie", f.session)
	f.serve(w, r) // returns, although the first visitor reads
	close(goOn)
	if got := <-read; got != http.StatusOK {
		t.Errorf("after a refusal of another, a visitor gets %d", got)
	}
}

// TestLive_DoesNotUseTheSession: a page that asks by itself is not a user who reads.
func TestLive_DoesNotUseTheSession(t *testing.T) {
	f := newFixture(t)
	f.api = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"text":"x"}`) }
	for at := time.Now(); at.Before(time.Now().Add(commands.ConsoleIdleTime)); at = at.Add(4 * time.Minute) {
		f.now = func() time.Time { return at }
		if got := f.reload(""); got.Code != http.StatusOK {
			t.Fatalf("%d", got.Code)
		}
	}
	f.now = func() time.Time { return time.Now().Add(commands.ConsoleIdleTime) }
	if got := f.reload(""); got.Code != http.StatusUnauthorized {
		t.Errorf("without a page in its time, a session gives %d", got.Code)
	}
}
