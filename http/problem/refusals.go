package problem

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// Refusal is a code with a status other than 400, and its title.
type Refusal struct {
	Code   string
	Status int
	Title  string
	retry  int // seconds until a retry can succeed; 0: a retry is refused again
}

// Refusals maps codes to statuses, and is the only place that does. Other codes are
// errors of the request: 400, or 404 if the code ends in _not_found.
func Refusals() []Refusal {
	return []Refusal{
		{"unauthenticated", http.StatusUnauthorized, "A valid key is required", 0},
		{"forbidden", http.StatusForbidden, "The key may not do this", 0},
		{"tenant_suspended", http.StatusForbidden, "The tenant is suspended", 0},
		{"not_found", http.StatusNotFound, "There is nothing here", 0},
		{"method_not_allowed", http.StatusMethodNotAllowed, "The method is not taken here", 0},
		{"request_timeout", http.StatusRequestTimeout, "The body did not arrive in time", 0},
		{"subscription_exists", http.StatusConflict, "The tenant has a subscription in force", 0},
		{"feature_type_fixed", http.StatusConflict, "The type of a feature does not change", 0},
		{"key_not_usable", http.StatusConflict, "The key is revoked or expired", 0},
		{"dead_letter_not_retryable", http.StatusConflict, "The dead letter cannot be retried now", 0},
		{"dead_letter_not_discardable", http.StatusConflict, "The dead letter cannot be discarded now", 0},
		{"rewind_forward", http.StatusConflict, "A rewind goes back only", 0},
		{"rebuild_in_progress", http.StatusConflict, "A rebuild of the same figures is under way", 0},
		{"rebuild_not_ready", http.StatusConflict, "The rebuild is not ready", 0},
		{"rebuild_promoted", http.StatusConflict, "The rebuild is promoted", 0},
		{"rebuild_abandoned", http.StatusConflict, "The rebuild is abandoned", 0},
		{"rebuild_not_promoted", http.StatusConflict, "The rebuild is not promoted", 0},
		{"rebuild_superseded", http.StatusConflict, "A later rebuild lies over this one", 0},
		{"rollback_expired", http.StatusConflict, "The previous generation is no longer kept", 0},
		{"scope_mixed", http.StatusConflict, "The figures are folded by several versions", 0},
		{"period_not_conserved", http.StatusConflict, "The period cannot be shown alone", 0},
		{"generation_broken", http.StatusConflict, "The generation cannot be shown", 0},
		{"fold_not_held", http.StatusConflict, "The instance does not hold the fold", 0},
		{"body_too_large", http.StatusRequestEntityTooLarge, "The body is too large", 0},
		{"media_type_unsupported", http.StatusUnsupportedMediaType, "The media type is not taken here", 0},
		{"content_encoding_unsupported", http.StatusUnsupportedMediaType, "The content encoding is not taken here", 0},
		{"idempotency_key_reused", http.StatusUnprocessableEntity, "The Idempotency-Key came with another request before", 0},
		{"rate_limited", http.StatusTooManyRequests, "The tenant sends more events than its rate allows", 1},
		{"backlog_full", http.StatusTooManyRequests, "Too many events wait to be published", 5},
		{"internal", http.StatusInternalServerError, "A fault of the service", 0},
		{"unavailable", http.StatusServiceUnavailable, "The event log is not available", 1},
		{"overloaded", http.StatusServiceUnavailable, "There is more to do than can be done in time", 1},
		{"projection_behind", http.StatusServiceUnavailable, "The position has not been folded yet", 1},
		{"not_ready", http.StatusServiceUnavailable, "A dependency does not answer", 1},
	}
}

// Titles of all other codes.
const (
	titleInvalid  = "The request is not valid"
	titleNotFound = "There is no such thing, or it is another's"
)

func refusalOf(code string) Refusal {
	for _, r := range Refusals() {
		if r.Code == code {
			return r
		}
	}
	if strings.HasSuffix(code, "_not_found") {
		return Refusal{code, http.StatusNotFound, titleNotFound, 0}
	}
	return Refusal{code, http.StatusBadRequest, titleInvalid, 0}
}

// Of converts an error of a command or a read to a problem. cause is the error to
// log, nil if only the caller is at fault.
func Of(err error) (p *Problem, cause error) {
	var refused *domain.Error
	var full *commands.Overloaded
	switch {
	case errors.As(err, &p):
		return p, nil
	case errors.As(err, &refused): // reads return these, too
		return New(refused.Code, refused.Message).At(refused.Pointer), nil
	case errors.As(err, &full):
		return tooMuch(full), nil
	case isOutage(err):
		return New("unavailable", "The event log does not answer; the outcome of this request is unknown, send the same again"), err
	}
	return New("internal", "A fault of the service; quote the request id to have it found"), err
}

// isOutage distinguishes an unavailable database from an internal error. The classes of
// SQLSTATE are: 08 connection, 40 rolled back, 53 resources, 55 lock not available, 57
// operator intervention, 58 system error.
func isOutage(err error) bool {
	if errors.Is(err, commands.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	var network net.Error
	if errors.As(err, &network) {
		return true
	}
	// The driver reports "conn closed" for a connection that ended during a read, and for one
	// whose COMMIT was not answered.
	var driver interface{ SafeToRetry() bool }
	if errors.As(err, &driver) {
		return true
	}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || len(state.SQLState()) != len("08006") {
		return false
	}
	switch state.SQLState()[:2] {
	case "08", "40", "53", "55", "57", "58":
		return true
	}
	return state.SQLState() == idleTooLong
}

// idleTooLong ends a session whose transaction was idle too long: the network was
// interrupted.
const idleTooLong = "25P03"
