package stripetest

import (
	"net/http"
)

// Fault is how the server fails on one request for a meter event.
type Fault int

// Faults. Those named After count the event before they fail.
const (
	None             Fault = iota
	Lose                   // the connection closes without an answer
	LoseAfter              // the same, after the event was counted
	Cut                    // the connection closes in the middle of an answer 500
	CutAfter               // the connection closes in the middle of the answer 200
	Fail                   // 500
	FailAfter              // 500, after the event was counted
	FailSaved              // 500, which is repeated for the idempotency key
	Unavailable            // 503 of a proxy, in HTML
	UnavailableAfter       // the same, after the event was counted
	TooMany                // 429
	LockTimeout            // 429 with the code lock_timeout
	Conflict               // 409
	KeyInUseAfter          // 409 with the code idempotency_key_in_use, after the event was counted
	Refuse                 // 400
	RefuseSaved            // 400, which is repeated for the idempotency key
	Unauthorized           // 401, as of a key that was rolled
	Forbidden              // 403, as of a restricted key without the permission
	Faults                 // the number of faults
)

// counts reports whether the event is counted before the fault.
func (f Fault) counts() bool {
	switch f {
	case LoseAfter, CutAfter, FailAfter, UnavailableAfter, KeyInUseAfter:
		return true
	}
	return false
}

// saved returns the answer that a fault saves for the idempotency key; nil: none.
func (f Fault) saved() (status int, body any) {
	switch f {
	case FailSaved:
		return http.StatusInternalServerError, serverError
	case RefuseSaved:
		return http.StatusBadRequest, refused
	}
	return 0, nil
}

// Next sets the faults of the next requests for meter events, one each.
func (s *Server) Next(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, faults...)
}

// Draw sets a source of faults for the requests without one of Next; nil: none.
func (s *Server) Draw(draw func() Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw = draw
}

// hold stops one request.
type hold struct {
	arrived, release chan struct{}
}

// Hold stops the next request for a meter event after it was counted, and before its answer. arrived is closed when it waits; release lets
// it go on.
func (s *Server) Hold() (arrived <-chan struct{}, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &hold{make(chan struct{}), make(chan struct{})}
	s.holds = append(s.holds, h)
	return h.arrived, func() { close(h.release) }
}

func (s *Server) nextFault() Fault {
	if len(s.faults) > 0 {
		f := s.faults[0]
		s.faults = s.faults[1:]
		return f
	}
	if s.draw != nil {
		return s.draw()
	}
	return None
}

// fail answers with a fault. ok is the answer that the request would get.
func (s *Server) fail(w http.ResponseWriter, f Fault, ok answer) {
	switch f {
	case Lose, LoseAfter:
		cut(w, nil)
	case Cut:
		cut(w, []byte("HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: "+
			"200\r\n\r\n{\"error\":{\"type\":"))
	case CutAfter:
		cut(w, append([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"),
			ok.body[:len(ok.body)/2]...))
	case Fail, FailAfter:
		write(w, http.StatusInternalServerError, serverError)
	case Unavailable, UnavailableAfter:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("<html><body>503 Service Unavailable</body></html>"))
	case TooMany:
		s.limit(w, "rate_limit", "Request rate limit exceeded.")
	case LockTimeout:
		s.limit(w, "lock_timeout", "This object cannot be accessed right now because another API request is accessing it.")
	case Conflict:
		write(w, http.StatusConflict, refusal("invalid_request_error", "", "This object is accessed by another request."))
	case KeyInUseAfter:
		write(w, http.StatusConflict, refusal("idempotency_error", "idempotency_key_in_use",
			"There is currently another in-progress request using this idempotency key."))
	case Refuse:
		write(w, http.StatusBadRequest, refused)
	case Unauthorized:
		write(w, http.StatusUnauthorized, refusal("invalid_request_error", "api_key_expired", "Expired API Key provided: sk_test_***"))
	case Forbidden:
		write(w, http.StatusForbidden, refusal("invalid_request_error", "more_permissions_required_for_application",
			"The provided key does not have the required permissions."))
	}
}

var (
	serverError = refusal("api_error", "", "An unknown error occurred.")
	refused     = refusal("invalid_request_error", "parameter_invalid", "This request is refused.")
)

func (s *Server) limit(w http.ResponseWriter, named, message string) {
	if s.RetryAfter != "" {
		w.Header().Set("Retry-After", s.RetryAfter)
	}
	write(w, http.StatusTooManyRequests, refusal("invalid_request_error", named, message))
}

// cut writes a part of an answer and closes the connection.
func cut(w http.ResponseWriter, part []byte) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = conn.Write(part)
	_ = conn.Close()
}
