package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// fakeService is a fake service for tests of the client alone: it returns the contract's
// verdicts for usage, and can be made to fail.
type fakeService struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	known    map[string]event // by eventId
	requests []string
	before   func(n int, w http.ResponseWriter) bool // true: before has responded
	after    func(n int) (drop bool)                 // true: the response is lost
	ingests  int
	tooOld   time.Time // earlier events are rejected
	catalog  map[string]json.RawMessage
	refuse   func(http.ResponseWriter) // answers GET instead of catalog
	awaited  string                    // minPosition and Prefer of the last read of figures
}

type event struct {
	EventID   string          `json:"eventId"`
	Feature   string          `json:"feature"`
	Amount    int64           `json:"amount"`
	Timestamp time.Time       `json:"timestamp"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	Type      string          `json:"type,omitempty"`
}

func (e event) payload() string {
	return fmt.Sprint(e.Feature, "|", e.Amount, "|", e.Timestamp.UTC(), "|", string(e.Metadata))
}

func newFakeService(t *testing.T) *fakeService {
	p := &fakeService{t: t, known: map[string]event{}, catalog: map[string]json.RawMessage{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/usage/events", p.ingest)
	mux.HandleFunc("GET /api/v1/usage/events/{id}", p.receipt)
	mux.HandleFunc("GET /api/v1/usage/aggregates", p.aggregates)
	mux.HandleFunc("/api/v1/", p.recordRequest)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

func (p *fakeService) ingest(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client closed the connection
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.ingests
	p.ingests++
	if p.before != nil && p.before(n, w) {
		return
	}
	var body struct{ Events []event }
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		p.t.Errorf("a batch that cannot be read: %v", err)
	}
	var verdicts []client.Verdict
	for i, e := range body.Events {
		v := client.Verdict{Index: i, EventID: &e.EventID, Position: fmt.Sprintf("3-%d", len(p.known)+1)}
		first, seen := p.known[e.EventID]
		switch {
		case seen && first.payload() == e.payload():
			v.Status = "duplicate"
		case seen:
			v.Status, v.Code, v.Reason = "conflict", "payload_conflict", "eventId was first used with another payload"
		case e.Timestamp.Before(p.tooOld):
			v.Status, v.Code, v.Reason = "rejected", "timestamp_too_old", "too old"
		default:
			v.Status = "accepted"
			p.known[e.EventID] = e
		}
		verdicts = append(verdicts, v)
	}
	if p.after != nil && p.after(n) {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusAccepted)
	json.NewEncoder(w).Encode(map[string]any{"events": verdicts})
}

func (p *fakeService) receipt(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.known[r.PathValue("id")]
	if !ok {
		refuse(w, http.StatusNotFound, "event_not_found", "There is no such event")
		return
	}
	json.NewEncoder(w).Encode(map[string]any{"eventId": e.EventID, "payload": e})
}

func (p *fakeService) aggregates(w http.ResponseWriter, r *http.Request) {
	if answer := p.catalog[r.URL.RequestURI()]; answer != nil {
		w.Write(answer)
		return
	}
	p.awaited = r.URL.Query().Get("minPosition") + " " + r.Header.Get("Prefer")
	if p.catalog["behind"] != nil {
		refuse(w, http.StatusServiceUnavailable, "projection_behind", "not yet")
		return
	}
	events, sums := p.totals()
	rows := []map[string]any{}
	for f, n := range events {
		rows = append(rows, map[string]any{"feature": f, "periodKey": "2026-05", "amount": sums[f], "eventCount": n})
	}
	json.NewEncoder(w).Encode(map[string]any{"data": rows, "asOfPosition": r.URL.Query().Get("minPosition")})
}

// recordRequest records each request. GET returns the path's entry of catalog, POST and PUT
// return that of their method and path, or the request's body.
func (p *fakeService) recordRequest(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	because := ""
	if reason := r.Header.Get("Meterplex-Reason"); reason != "" {
		because = " because " + reason
	}
	p.requests = append(p.requests, fmt.Sprintf("%s %s %s%s", r.Method, r.URL.RequestURI(), body, because))
	switch r.Method {
	case http.MethodGet:
		if p.refuse != nil {
			p.refuse(w)
			return
		}
		answer, ok := p.catalog[r.URL.Path]
		if status := r.URL.Query().Get("status"); status != "" {
			answer, ok = p.catalog[r.URL.Path+" "+status]
		}
		if !ok {
			answer = json.RawMessage(`{"data":[],"nextCursor":null}`)
		}
		w.Write(answer)
	case http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		if answer, ok := p.catalog[r.Method+" "+r.URL.Path]; ok {
			w.Write(answer)
			return
		}
		w.WriteHeader(http.StatusCreated)
		answer := bytes.TrimSuffix(body, []byte("}"))
		if len(body) == 0 {
			answer = []byte(`{"empty":true`)
		}
		fmt.Fprintf(w, `%s,"id":"id-1","secret":"mp_live_%s"}`, answer, strings.Repeat("x", 43))
	}
}

// canonical returns a request with the members of its body in order.
func canonical(t *testing.T, request string) string {
	t.Helper()
	at := strings.IndexByte(request, '{')
	if at < 0 {
		return request
	}
	d := json.NewDecoder(strings.NewReader(request[at:]))
	d.UseNumber()
	var body any
	if err := d.Decode(&body); err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return request[:at] + string(text) + request[at+int(d.InputOffset()):]
}

func refuse(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"status": status, "code": code, "detail": detail})
}

// totals returns the number of events and the sum of amounts of each feature.
func (p *fakeService) totals() (events, sums map[string]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	events, sums = map[string]int64{}, map[string]int64{}
	for _, e := range p.known {
		events[e.Feature]++
		sums[e.Feature] += e.Amount
	}
	return events, sums
}

// console runs commands in a test.
type console struct {
	app    *program
	out    *bytes.Buffer
	err    *lockedBuffer
	cancel context.CancelFunc
}

// lockedBuffer is a buffer for concurrent writers.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newConsole returns a console with its own data directory and the fake service as service.
func newConsole(t *testing.T, p *fakeService) *console {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	env := map[string]string{"METERPLEX_DATA_DIR": t.TempDir(), "METERPLEX_KEY": "mp_live_test"}
	if p != nil {
		env["METERPLEX_URL"] = p.url
	}
	c := &console{out: &bytes.Buffer{}, err: &lockedBuffer{}, cancel: cancel}
	c.app = &program{App: &app.App{
		Ctx: ctx, Stdin: strings.NewReader(""), Stdout: c.out, Stderr: c.err, Now: time.Now,
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	}}
	return c
}

// run runs a command and returns its exit code and output.
func (c *console) run(args ...string) (code int, stdout, stderr string) {
	c.out.Reset()
	before := len(c.err.String())
	code = c.app.run(args)
	return code, c.out.String(), c.err.String()[before:]
}

// setEnv adds environment variables to the console.
func (c *console) setEnv(more map[string]string) {
	before := c.app.Env
	c.app.Env = func(name string) (string, bool) {
		if v, ok := more[name]; ok {
			return v, true
		}
		return before(name)
	}
}
