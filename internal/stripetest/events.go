package stripetest

import (
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	maxPast   = 35 * 24 * time.Hour
	maxFuture = 5 * time.Minute
)

// create counts a meter event, or fails.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.begin()
	s.requests = append(s.requests, Request{Header: r.Header.Clone(), Body: string(text), At: s.now})
	fault := s.nextFault()
	if !s.hasKey(r) {
		s.mu.Unlock()
		unauthorized(w, r)
		return
	}
	var ok answer
	replayed := false
	if fault == None || fault.counts() {
		ok, replayed = s.handle(r.Header.Get("Idempotency-Key"), string(text))
	} else if status, saved := fault.saved(); saved != nil {
		ok, replayed = s.once(r.Header.Get("Idempotency-Key"), string(text), func() answer {
			return s.save(r.Header.Get("Idempotency-Key"), string(text), status, saved)
		})
		fault = None
	}
	var held *hold
	if len(s.holds) > 0 {
		held, s.holds = s.holds[0], s.holds[1:]
	}
	s.mu.Unlock()
	if held != nil {
		close(held.arrived)
		select {
		case <-held.release:
		case <-s.done:
		}
	}
	if fault != None {
		s.fail(w, fault, ok)
		return
	}
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(ok.status)
	_, _ = w.Write(ok.body)
}

// once is the idempotency layer: it returns the answer that is saved for a key, and true; otherwise that of run. It ignores
// identifiers.
func (s *Server) once(key, body string, run func() answer) (a answer, replayed bool) {
	saved, known := s.answers[key]
	if key == "" || !known || s.now.Sub(saved.at) >= uniqueFor {
		return run(), false
	}
	if saved.request == body {
		return saved, true
	}
	return s.result(http.StatusBadRequest,
		refusal("idempotency_error", "",
			"Keys for idempotent requests can only be used with the same parameters they were first used with.")), false
}

// handle returns the answer to a request, and whether it is a saved one.
func (s *Server) handle(key, body string) (a answer, replayed bool) {
	return s.once(key, body, func() answer { return s.execute(key, body) })
}

// execute counts an event, or refuses it. The answer is saved for the key, whatever it is, once the endpoint looks at more than the form of
// the request.
func (s *Server) execute(key, body string) answer {
	e, refused := s.parse(body)
	if refused != nil {
		return s.result(http.StatusBadRequest, refused)
	}
	e.Key = key
	if !s.known(e) && !s.Asynchronous {
		return s.save(key, body, http.StatusBadRequest, refusal("invalid_request_error", "resource_missing",
			"No active meter found for event name '"+e.Event+"', or no such customer: '"+e.Customer+"'"))
	}
	if slices.ContainsFunc(s.counted, func(c Event) bool { return c.Identifier == e.Identifier && s.now.Sub(c.At) < uniqueFor }) {
		return s.save(key, body, http.StatusBadRequest,
			refusal("invalid_request_error", "", "An event already exists with identifier "+e.Identifier+"."))
	}
	if s.known(e) {
		if s.counted = append(s.counted, e); s.OnCount != nil {
			s.OnCount(e)
		}
	}
	return s.save(key, body, http.StatusOK, map[string]any{"object": "billing.meter_event", "created": s.now.Unix(), "event_name": e.Event,
		"identifier": e.Identifier,
		"livemode":   false, "payload": map[string]string{"stripe_customer_id": e.Customer, "value": e.Value.String()},
		"timestamp": e.Timestamp.Unix()})
}

// parse decodes a request, or refuses it.
func (s *Server) parse(body string) (e Event, refused map[string]any) {
	f := form(body)
	at, err := strconv.ParseInt(f.Get("timestamp"), 10, 64)
	value, isInteger := new(big.Int).SetString(f.Get("payload[value]"), 10)
	e = Event{Event: f.Get("event_name"), Customer: f.Get("payload[stripe_customer_id]"), Identifier: f.Get("identifier"), Value: value,
		Timestamp: time.Unix(at, 0).UTC(), At: s.now}
	invalid := func(named, message string) map[string]any { return refusal("invalid_request_error", named, message) }
	switch {
	case e.Event == "" || len(e.Event) > 100:
		refused = invalid("parameter_missing", "Missing required param: event_name.")
	case e.Identifier == "" || len(e.Identifier) > 100:
		refused = invalid("parameter_invalid", "Invalid identifier: at most 100 characters.")
	case err != nil:
		refused = invalid("parameter_invalid_integer", "Invalid integer: "+f.Get("timestamp"))
	case !isInteger:
		refused = invalid("parameter_invalid", "Invalid value in payload: "+f.Get("payload[value]"))
	case e.Timestamp.Before(s.now.Add(-maxPast)):
		refused = invalid("timestamp_too_far_in_past", "The timestamp must be within the past 35 calendar days.")
	case e.Timestamp.After(s.now.Add(maxFuture)):
		refused = invalid("timestamp_in_future", "The timestamp must be within 5 minutes in the future.")
	}
	return e, refused
}

// known reports whether an event has an active meter and a customer.
func (s *Server) known(e Event) bool {
	return s.customers[e.Customer] && slices.ContainsFunc(s.meters, func(m Meter) bool { return m.Event == e.Event && !m.Inactive })
}

func (s *Server) result(status int, body any) answer {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return answer{status: status, body: text, at: s.now}
}

// save keeps an answer for its idempotency key.
func (s *Server) save(key, body string, status int, result any) answer {
	a := s.result(status, result)
	a.request = body
	if key != "" {
		s.answers[key] = a
	}
	return a
}
