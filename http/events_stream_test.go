package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	nethttp "net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/tier"
)

// listener reads a stream of server-sent events.
type listener struct {
	testing.TB
	header nethttp.Header
	body   io.ReadCloser
	scan   *bufio.Reader
	last   string // id
}

// stream opens a stream. A refusal fails the test.
func (w *testService) stream(ctx context.Context, path string, header map[string]string) *listener {
	w.Helper()
	request, err := nethttp.NewRequestWithContext(ctx, "GET", w.url+path, nil)
	w.must(err)
	for name, value := range header {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	response, err := w.client.Do(request)
	w.must(err)
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "text/event-stream" {
		body, _ := io.ReadAll(response.Body)
		w.Fatalf("%s: %d %s", path, response.StatusCode, body)
	}
	return &listener{TB: w.TB, header: response.Header, body: response.Body, scan: bufio.NewReader(response.Body),
		last: header["Last-Event-ID"]}
}

// listen opens a stream of the log.
func (w *testService) listen(ctx context.Context, key, query, lastID string) *listener {
	w.Helper()
	return w.stream(ctx, "/api/v1/events/stream"+query, map[string]string{"Authorization": "Bearer " + key, "Last-Event-ID": lastID})
}

// next returns the data of the next event, or false if the stream has ended.
func (l *listener) next() (data string, ok bool) {
	for id, lines := l.last, []string(nil); ; {
		line, err := l.scan.ReadString('\n')
		if err != nil {
			return "", false
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "id":
			id = value
		case "data":
			lines = append(lines, value)
		case "":
			if l.last = id; lines != nil {
				return strings.Join(lines, "\n"), true
			}
		}
	}
}

// A client that reconnects often, during appends, receives each event exactly once if it
// continues from its last id.
func TestStreamsDeliverEachEventOnce(t *testing.T) {
	w, a, b, auditor := newServiceWithEvents(t)
	const recorded = "?subject=meterplex.usage.event.recorded.v1&tenantId="
	for name, c := range map[string]struct {
		key, query string
		of         []string // parts of the events that are streamed
	}{
		"own": {a.key, "", []string{`"tenantId":"` + a.id}}, "all": {auditor, "", nil},
		"few": {auditor, recorded + b.id, []string{`"tenantId":"` + b.id, `"eventType":"meterplex.usage.event.recorded"`}},
	} {
		logged := w.loggedEvents
		if c.key == a.key {
			logged = w.tenantsEvents
		}
		known := logged(nil)
		var got []string
		var last string
		listen := func(query string, most int) { // reads a number of events, and breaks off
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := w.listen(ctx, c.key, with(c.query, query), last)
			defer l.body.Close()
			if last == "" { // follows what is recorded from now on
				w.ingest(a, batch(event(name+"first", nil)))
				w.ingest(b, batch(event(name+"first", nil)))
			}
			for range most {
				data, ok := l.next()
				if !ok && query == "follow=true" {
					t.Fatalf("%s: the stream ended", name)
				}
				if !ok {
					return
				}
				got, last = append(got, data), l.last
			}
		}
		listen("follow=true", 1)
		var recording sync.WaitGroup
		recording.Go(func() {
			for i := range 20 {
				w.ingest(a, batch(event(fmt.Sprint(name, i), nil), event(fmt.Sprint(name, "s", i), map[string]any{"feature": "storage"})))
				w.ingest(b, batch(event(fmt.Sprint(name, i), nil)))
			}
		})
		for range 10 { // at least 20 are recorded
			listen("follow=true", 1+rand.N(2))
		}
		recording.Wait()
		listen("follow=false", 1000)
		want := slices.DeleteFunc(logged(nil), func(line string) bool { return slices.Contains(known, line) })
		for _, part := range c.of {
			want = linesWith(want, part)
		}
		slices.Sort(got)
		slices.Sort(want)
		w.same(name, got, want)
	}
}

// startServer starts another server for the test service, with other timeouts, and returns a function
// that stops it.
func (w *testService) startServer(change func(*nethttp.Server)) (stop func(context.Context) error) {
	w.Helper()
	handler, err := w.server().Handler()
	w.must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	server := http.NewServer("", handler)
	change(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	w.addr, w.url = listener.Addr().String(), "http://"+listener.Addr().String()
	w.Cleanup(func() { w.client.CloseIdleConnections(); _ = server.Close(); <-done })
	return server.Shutdown
}

// A stream outlives the timeouts of other requests, and ends with the server.
func TestStreamsOutliveRequestsAndEndWithTheServer(t *testing.T) {
	w, a, _, auditor := newServiceWithEvents(t)
	recording, timeout := *w, 3*time.Second
	rebuild := w.want(202, call{"POST", "/api/v1/projections/usage_aggregates/rebuilds", bootstrap, nil, `{"reason":"r"}`})["id"].(string)
	stop := w.startServer(func(s *nethttp.Server) { s.WriteTimeout, s.ReadTimeout = timeout, timeout })
	l, other := w.listen(t.Context(), a.key, "", ""), w.listen(t.Context(), auditor, "?last=1", "")
	defer other.body.Close()
	progress := w.stream(t.Context(), "/api/v1/rebuilds/"+rebuild+"/events", map[string]string{"Authorization": "Bearer " + bootstrap})
	defer progress.body.Close()
	time.Sleep(timeout + timeout/4)
	recording.ingest(a, batch(event("slow", nil)))
	if data, ok := l.next(); !ok || !strings.Contains(data, `"slow"`) {
		t.Fatalf("%v %s", ok, data)
	}
	w.must(stop(t.Context()))
	if _, ok := l.next(); ok {
		t.Error("the stream goes on")
	}
	if _, err := io.Copy(io.Discard, progress.body); err != nil {
		t.Errorf("the progress of a rebuild ends with %v", err)
	}
	l.body.Close()
}

// A client that disconnects is released at once: its stream leaves no resources behind.
func TestClosedStreamsReleaseTheirResources(t *testing.T) {
	w, a, _, auditor := newServiceWithEvents(t)
	for range tier.Draws(t, 65, 3*64) { // more than the maximum of open streams
		for _, path := range []string{"stream", "export"} {
			ctx, cancel := context.WithCancel(t.Context())
			request, err := nethttp.NewRequestWithContext(ctx, "GET", w.url+"/api/v1/events/"+path, nil)
			w.must(err)
			request.Header.Set("Authorization", "Bearer "+auditor)
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				response, err := w.client.Do(request)
				w.must(err)
				_, err = io.ReadFull(response.Body, make([]byte, 10))
				w.must(err)
				response.Body.Close()
				if response.StatusCode == 200 {
					break
				}
				if response.StatusCode != 503 || time.Now().After(end) { // earlier streams may still be closing
					t.Fatal(response.StatusCode)
				}
			}
			cancel()
		}
	}
	w.ingest(a, batch(event("still there", nil)))
	for open, look := 1, w.sessions(); open > 0; time.Sleep(10 * time.Millisecond) {
		open, _ = look()
	}
}

// sessions returns a function that inspects the service's database sessions: how many are
// active or in a transaction, and the longest time in seconds that one has been idle in
// it. It uses an admin connection, because the service's own role may not see this.
func (w *testService) sessions() (look func() (open int, idle float64)) {
	w.Helper()
	admin, err := pgx.Connect(w.Context(), localtest.Postgres(w).AdminURL())
	w.must(err)
	w.Cleanup(func() { _ = admin.Close(context.Background()) })
	return func() (open int, idle float64) {
		var seen int
		w.must(admin.QueryRow(w.Context(), `SELECT count(state), count(*) FILTER (WHERE state LIKE 'idle in transaction%'
			OR state = 'active'),
			coalesce(max(extract(epoch FROM now() - state_change)) FILTER (WHERE state LIKE 'idle in transaction%'), 0)::float8
			FROM pg_stat_activity WHERE datname = $1 AND application_name = 'test'`, w.pool.Config().ConnConfig.Database).Scan(&seen, &open,
			&idle))
		if seen == 0 {
			w.Fatal("no session is shown: nothing can be said of them")
		}
		return open, idle
	}
}

// A client that does not read holds no transaction, and at most one page.
func TestSlowClientsHoldNoTransaction(t *testing.T) {
	tier.AtSize(t)
	w, a, _, auditor := newServiceWithEvents(t)
	for i := range 30 {
		var some []any
		for n := range 200 {
			some = append(some, event(fmt.Sprint("many", i, "-", n),
				map[string]any{"metadata": map[string]any{"pad": strings.Repeat("x", 3000)}}))
		}
		w.ingest(a, batch(some...))
	}
	conn, err := net.Dial("tcp", w.addr)
	w.must(err)
	defer conn.Close()
	w.must(conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprintf(conn, "GET /api/v1/events/export HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", auditor)
	w.must(err)
	var head [15]byte
	_, err = io.ReadFull(conn, head[:])
	w.must(err)
	if string(head[:]) != "HTTP/1.1 200 OK" {
		t.Fatalf("%s", head)
	}
	quiet, look := 0, w.sessions()
	for quiet < 20 { // once its connection is full, the server does no work for it
		time.Sleep(10 * time.Millisecond)
		open, idle := look()
		if idle > 2 { // the server itself would end it later
			t.Fatalf("for a client that reads no byte a session is idle in its transaction, for %.1f s", idle)
		}
		if quiet++; open > 0 {
			quiet = 0
		}
	}
	var line struct{ EventID string }
	all := w.do(call{method: "GET", path: "/api/v1/events/export", key: auditor})
	if n := len(lines(all)); n < 6000 || json.Unmarshal([]byte(lines(all)[n-1]), &line) != nil {
		t.Errorf("another one gets %d lines", n)
	}
}
