// Package stripetest is a Stripe for tests and the demo. It counts meter events, enforces unique identifiers and idempotency keys for 24
// hours on a clock of its own, and fails on demand. It must not share code with infra/stripe.
package stripetest

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// uniqueFor is how long Stripe remembers identifiers and idempotency keys.
const uniqueFor = 24 * time.Hour

// Meter adds up the events of one name.
type Meter struct {
	ID, Event, Formula, Window string
	Inactive                   bool
}

// Event is a counted meter event.
type Event struct {
	Event, Customer, Identifier, Key string
	Value                            *big.Int
	Timestamp                        time.Time
	At                               time.Time // by the server's clock
}

// Request is a request for a meter event, counted or not.
type Request struct {
	Header http.Header
	Body   string
	At     time.Time
}

// Server is a Stripe account on a local address. Its fields may be set before the first request.
type Server struct {
	URL string
	Key string // the accepted secret key
	// RetryAfter is the header of answers 429; "": none.
	RetryAfter string
	// Asynchronous: an event without a meter or a customer is answered 200 and never counted, as Stripe reports some errors later.
	Asynchronous bool
	// Lag is the age from which events are in totals.
	Lag time.Duration
	// Real lets the server's clock follow that of the machine, from the first request on.
	Real bool
	// OnCount is called for each counted event; may be nil.
	OnCount func(Event)

	http *httptest.Server
	done chan struct{}

	mu        sync.Mutex
	now       time.Time
	meters    []Meter // the newest first
	customers map[string]bool
	counted   []Event
	answers   map[string]answer // by idempotency key
	requests  []Request
	faults    []Fault
	draw      func() Fault
	holds     []*hold
}

// answer is saved for an idempotency key.
type answer struct {
	request string
	status  int
	body    []byte
	at      time.Time
}

// New starts a server. Its clock stands at now until Advance, unless it is Real.
func New(key string, now time.Time) *Server {
	s := &Server{Key: key, now: now, customers: map[string]bool{}, answers: map[string]answer{}, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/billing/meter_events", s.create)
	mux.HandleFunc("GET /v1/billing/meters", s.authorized(s.listMeters))
	mux.HandleFunc("GET /v1/billing/meters/{id}/event_summaries", s.authorized(s.summaries))
	s.http = httptest.NewServer(mux)
	s.URL = s.http.URL
	return s
}

// Close ends all requests and the server.
func (s *Server) Close() {
	close(s.done)
	s.http.CloseClientConnections()
	s.http.Close()
}

// AddMeter adds a meter. An empty formula is sum.
func (s *Server) AddMeter(m Meter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.ID == "" {
		m.ID = fmt.Sprintf("mtr_%d", len(s.meters)+1)
	}
	if m.Formula == "" {
		m.Formula = "sum"
	}
	s.meters = append([]Meter{m}, s.meters...)
}

// AddCustomer adds customers.
func (s *Server) AddCustomer(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.customers[id] = true
	}
}

// begin begins a request: it locks the server, at the time of its clock.
func (s *Server) begin() {
	s.mu.Lock()
	if s.Real {
		s.now = time.Now().UTC()
	}
}

// Advance moves the server's clock.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// Sum returns the amount counted for a customer's event, whatever its timestamp.
func (s *Server) Sum(customer, event string) *big.Int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum(func(e Event) bool { return e.Customer == customer && e.Event == event })
}

func (s *Server) sum(of func(Event) bool) *big.Int {
	sum := new(big.Int)
	for _, e := range s.counted {
		if of(e) {
			sum.Add(sum, e.Value)
		}
	}
	return sum
}

// Counted returns the counted events.
func (s *Server) Counted() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.counted)
}

// Requests returns the requests for meter events.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Server) hasKey(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+s.Key)) == 1
}

// unauthorized answers with the whole header, unlike Stripe: a client must hide its key whatever the answer says.
func unauthorized(w http.ResponseWriter, r *http.Request) {
	write(w, http.StatusUnauthorized, refusal("invalid_request_error", "", "Invalid API Key provided: "+r.Header.Get("Authorization")))
}

func (s *Server) authorized(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.hasKey(r) {
			unauthorized(w, r)
			return
		}
		next(w, r)
	}
}

func (s *Server) listMeters(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	rest := s.meters
	if after := r.URL.Query().Get("starting_after"); after != "" {
		rest = rest[slices.IndexFunc(rest, func(m Meter) bool { return m.ID == after })+1:]
	}
	page, more := rest, false
	if limit > 0 && len(rest) > limit {
		page, more = rest[:limit], true
	}
	data := []any{}
	for _, m := range page {
		status, window := "active", any(nil)
		if m.Inactive {
			status = "inactive"
		}
		if m.Window != "" {
			window = m.Window
		}
		data = append(data, map[string]any{"id": m.ID, "object": "billing.meter", "event_name": m.Event, "event_time_window": window,
			"status": status, "livemode": false,
			"default_aggregation": map[string]any{"formula": m.Formula}, "value_settings": map[string]any{"event_payload_key": "value"},
			"customer_mapping": map[string]any{"type": "by_id", "event_payload_key": "stripe_customer_id"}})
	}
	write(w, http.StatusOK, map[string]any{"object": "list", "url": "/v1/billing/meters", "has_more": more, "data": data})
}

// summaries answers the total of one window, in which the end is exclusive.
func (s *Server) summaries(w http.ResponseWriter, r *http.Request) {
	s.begin()
	defer s.mu.Unlock()
	q := r.URL.Query()
	i := slices.IndexFunc(s.meters, func(m Meter) bool { return m.ID == r.PathValue("id") })
	from, errFrom := strconv.ParseInt(q.Get("start_time"), 10, 64)
	to, errTo := strconv.ParseInt(q.Get("end_time"), 10, 64)
	switch {
	case i < 0:
		write(w, http.StatusNotFound, refusal("invalid_request_error", "resource_missing", "No such billing meter: '"+r.PathValue("id")+
			"'"))
	case errFrom != nil || errTo != nil || from%60 != 0 || to%60 != 0 || from >= to:
		write(w, http.StatusBadRequest, refusal("invalid_request_error", "",
			"start_time and end_time must be aligned with minute boundaries"))
	case !s.customers[q.Get("customer")]:
		write(w, http.StatusBadRequest, refusal("invalid_request_error", "resource_missing", "No such customer: '"+q.Get("customer")+"'"))
	default:
		data := []any{}
		of := func(e Event) bool {
			at := e.Timestamp.Unix()
			return e.Event == s.meters[i].Event && e.Customer == q.Get("customer") && at >= from && at < to &&
				!e.At.After(s.now.Add(-s.Lag))
		}
		if slices.ContainsFunc(s.counted, of) {
			data = append(data, map[string]any{"id": "mtrusg_1", "object": "billing.meter_event_summary",
				"aggregated_value": json.Number(s.sum(of).String()),
				"start_time":       from, "end_time": to, "livemode": false, "meter": s.meters[i].ID})
		}
		write(w, http.StatusOK, map[string]any{"object": "list", "url": r.URL.Path, "has_more": false, "data": data})
	}
}

// refusal is the body of an error.
func refusal(kind, named, message string) map[string]any {
	e := map[string]any{"type": kind, "message": message}
	if named != "" {
		e["code"] = named
	}
	return map[string]any{"error": e}
}

func write(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// form decodes a body as Stripe does: payload[value] is a key of its own.
func form(body string) url.Values {
	v, err := url.ParseQuery(body)
	if err != nil {
		return nil
	}
	return v
}
