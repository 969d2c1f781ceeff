package meterplex

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	for wait := time.Now().Add(5 * time.Second); code == 0 && runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			stacks := make([]byte, 1<<20)
			panic("goroutines remain:\n" + string(stacks[:runtime.Stack(stacks, true)]))
		}
	}
	exit(code)
}

// service is a service that counts usage in memory.
type service struct {
	*httptest.Server
	mu       sync.Mutex
	payloads map[string]string // by eventId
	order    []string          // eventIds as they were first accepted
	batches  []received
	answer   func(w http.ResponseWriter, r *http.Request, events []json.RawMessage) bool // true: it has answered
}

// received is a batch that arrived.
type received struct {
	ids    []string
	header http.Header
}

func newService(t testing.TB) *service {
	s := &service{payloads: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *service) serve(w http.ResponseWriter, r *http.Request) {
	var body struct{ Events []json.RawMessage }
	var from io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		from, _ = gzip.NewReader(r.Body)
	}
	if from != nil {
		_ = json.NewDecoder(from).Decode(&body)
	}
	b := received{header: r.Header}
	for _, e := range body.Events {
		b.ids = append(b.ids, headOf(e).EventID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches = append(s.batches, b)
	if s.answer != nil && s.answer(w, r, body.Events) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, s.verdicts(body.Events))
}

// verdicts counts events and returns the answer; those of the feature "unknown" are rejected.
func (s *service) verdicts(events []json.RawMessage) string {
	var list []string
	for _, e := range events {
		id, verdict := headOf(e).EventID, ""
		switch known, again := s.payloads[id]; {
		case strings.Contains(string(e), `"feature":"unknown"`):
			verdict = `"status":"rejected","code":"feature_not_found","reason":"Feature \"unknown\" not found"`
		case again && known != string(e):
			verdict = `"status":"conflict","code":"payload_conflict","reason":"another payload","position":"1-1"`
		case again:
			verdict = `"status":"duplicate","position":"1-1"`
		default:
			s.payloads[id] = string(e)
			s.order = append(s.order, id)
			verdict = fmt.Sprintf(`"status":"accepted","position":"1-%d"`, len(s.order))
		}
		list = append(list, fmt.Sprintf(`{"eventId":%q,%s,"later":1}`, id, verdict))
	}
	return `{"events":[` + strings.Join(list, ",") + `]}`
}

// with runs f while no request is served.
func (s *service) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// collected are what handlers got.
type collected struct {
	mu       sync.Mutex
	verdicts []Verdict
	errors   []*Error
}

func (c *collected) codes() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.errors {
		all = append(all, e.Code)
	}
	return all
}

// newClient returns a client whose waits are short, and what its handlers get.
func newClient(t testing.TB, s *service, dir string, change func(*Options)) (*Client, *collected) {
	t.Helper()
	got := &collected{}
	o := &Options{BatchAge: time.Millisecond, LongestWait: 20 * time.Millisecond, KeyWait: time.Hour,
		OnVerdict: func(_ Event, v Verdict) {
			got.mu.Lock()
			defer got.mu.Unlock()
			got.verdicts = append(got.verdicts, v)
		},
		OnError: func(e *Error) {
			got.mu.Lock()
			defer got.mu.Unlock()
			got.errors = append(got.errors, e)
		},
	}
	if change != nil {
		change(o)
	}
	c, err := New(s.URL, "mp_test_key", dir, o)
	ok(t, err)
	t.Cleanup(func() { c.Close(ended) })
	return c, got
}

// ended is a context whose deadline is over.
var ended, _ = context.WithDeadline(context.Background(), time.Unix(1, 0)) //nolint

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a state.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for wait := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

func record(t testing.TB, c *Client, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := c.Record(t.Context(), Event{EventID: id, Feature: "api_calls", Amount: 1})
		ok(t, err)
	}
}

func flush(t testing.TB, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if rest := c.Flush(ctx); rest.Events != 0 {
		t.Fatalf("%+v remain", rest)
	}
}

// ServeExamples starts a service for the examples, which are in a package of their own.
func ServeExamples() (url string, stop func()) {
	s := &service{payloads: map[string]string{}}
	web := http.NewServeMux()
	answer := func(pattern, body string, status int) {
		web.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			var sent struct{ EventID, ReservationID string }
			_ = json.NewDecoder(r.Body).Decode(&sent)
			w.Header().Set("Content-Type", map[bool]string{true: "application/json", false: problemJSON}[status < 400])
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.NewReplacer("EVENT", sent.EventID, "RESERVATION", sent.ReservationID).Replace(body))
		})
	}
	web.HandleFunc("POST /api/v1/usage/events", s.serve)
	answer("GET /api/v1/usage/aggregates", `{"data":[{"feature":"api_calls","amount":"9007199254740993"}],"nextCursor":null}`, 200)
	answer("GET /api/v1/entitlements/tokens/check", `{"allowed":true,"remaining":"600"}`, 200)
	answer("POST /api/v1/entitlements/tokens/consume", `{"code":"quota_exceeded","remaining":"600"}`, 409)
	answer("POST /api/v1/entitlements/tokens/reservations", `{"reservationId":"RESERVATION","state":"HELD","amount":"500"}`, 201)
	answer("POST /api/v1/entitlements/tokens/reservations/{id}/commit", `{"eventId":"EVENT","amount":"412","released":"88"}`, 200)
	server := httptest.NewServer(web)
	return server.URL, server.Close
}
