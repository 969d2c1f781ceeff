package meterplex

import (
	"encoding/json"
	"fmt"
	"time"
)

// Error is what the service refuses, and what the client itself cannot do. Find it with errors.As.
//
// Codes of the service are in its documentation (docs/reference/errors.md); later services may have more. Codes of the client:
// invalid_argument, queue_full, queue_failed, closed, unavailable, unknown_outcome, answer_invalid; and, to OnError only: damaged, too_old.
type Error struct {
	Code    string       // stable, snake_case, e.g. quota_exceeded
	Status  int          // of HTTP; 0 if the service did not answer
	Detail  string       // what failed, in English
	Remedy  string       // what to do; "" if the code is not known to this version
	TraceID string       // of the request, for the operator of the service
	Errors  []FieldError // the members at fault
	// ID is the eventId or the reservationId of a request whose outcome is unknown. The same request with this id has an effect once at
	// most.
	ID string
	// State is that of the reservation (reservation_ended).
	State string
	// Account is the account that refuses (quota_exceeded).
	Account
	// JSON is the whole problem (RFC 9457) as the service answered it.
	JSON json.RawMessage

	cause      error
	retryAfter time.Duration
}

// FieldError is a fault of one member.
type FieldError struct {
	Pointer string `json:"pointer"` // a JSON pointer
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

func (e *Error) Error() string { return "meterplex: " + e.Code + ": " + e.Detail }

// Unwrap returns the cause, e.g. context.DeadlineExceeded.
func (e *Error) Unwrap() error { return e.cause }

func newError(code string, cause error, format string, args ...any) *Error {
	detail := fmt.Sprintf(format, args...)
	if cause != nil {
		detail += ": " + cause.Error()
	}
	return &Error{Code: code, Detail: detail, Remedy: remedies[code], cause: cause}
}
