package console

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// browse opens a stream of a fixture over HTTP/2. The returned function reads the stream up to a line with a text.
func (f *fixture) browse(t *testing.T, path string) (await func(text string)) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(f.routes["GET "+path].ServeHTTP))
	server.EnableHTTP2, server.Config.WriteTimeout = true, f.serverWrite
	server.StartTLS()
	t.Cleanup(server.Close)
	ctx, leave := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(leave)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
	must.OK(t, err)
	r.Header.Set("Cookie", f.session)
	answer, err := server.Client().Do(r)
	if err != nil || answer.ProtoMajor != 2 || answer.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", answer, err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	lines := bufio.NewReader(answer.Body)
	return func(text string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("the stream ended before %q: %v", text, err)
			}
			if strings.Contains(line, text) {
				return
			}
		}
	}
}

// writeTime is how long an event of these tests may wait for its browser. The streams are quiet for much longer.
const writeTime = 200 * time.Millisecond

// TestStream_OverHTTP2IsNotEndedWhileItIsQuiet: the deadline of a write that expires after it would reset the stream.
func TestStream_OverHTTP2IsNotEndedWhileItIsQuiet(t *testing.T) {
	f := newFixture(t)
	f.pages[len(f.pages)-1].streams[0].within = writeTime
	f.api = func(w http.ResponseWriter, _ *http.Request) {
		for _, text := range []string{"first", "second", "third"} {
			fmt.Fprintf(w, "data: {\"text\":%q}\n\n", text)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(4 * writeTime)
		}
	}
	await := f.browse(t, livePath)
	await("first")
	await("second")
	await("third")
}

// TestTail_OverHTTP2IsNotEndedWhileItIsQuiet as TestStream_OverHTTP2IsNotEndedWhileItIsQuiet.
func TestTail_OverHTTP2IsNotEndedWhileItIsQuiet(t *testing.T) {
	f, log := newTailFixture(t)
	f.tailed.within = writeTime
	log.add("0-1")
	await := f.browse(t, Prefix+"/log/stream")
	await("0-1")
	for _, position := range []string{"0-2", "0-3"} {
		time.Sleep(4 * writeTime)
		log.add(position)
		await("<p>" + position)
	}
}

// TestTail_OverHTTP2WaitsForABusyDatabase for longer than an answer may take to begin.
func TestTail_OverHTTP2WaitsForABusyDatabase(t *testing.T) {
	f, log := newTailFixture(t)
	log.add("0-1")
	began := time.Now()
	f.api = func(w http.ResponseWriter, r *http.Request) {
		if time.Since(began) > 3*tailEvery {
			log.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"status":503,"code":"overloaded","title":"T","detail":"D"}`)
	}
	f.serverWrite = tailEvery / 2
	f.browse(t, Prefix+"/log/stream")("0-1")
}
