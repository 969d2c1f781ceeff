package http

import (
	"context"
	"errors"
	"io"
	"net"
	nethttp "net/http"
	"strings"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// refusal is a code with a status other than 400, and its title.
type refusal struct {
	code   string
	status int
	title  string
	retry  int // seconds until a retry can succeed; 0: a retry is refused again
}

// refusals maps codes to statuses, and is the only place that does. Other codes are
// errors of the request: 400, or 404 if the code ends in _not_found.
func refusals() []refusal {
	return []refusal{
		{"unauthenticated", nethttp.StatusUnauthorized, "A valid key is required", 0},
		{"forbidden", nethttp.StatusForbidden, "The key may not do this", 0},
		{"tenant_suspended", nethttp.StatusForbidden, "The tenant is suspended", 0},
		{"not_found", nethttp.StatusNotFound, "There is nothing here", 0},
		{"method_not_allowed", nethttp.StatusMethodNotAllowed, "The method is not taken here", 0},
		{"request_timeout", nethttp.StatusRequestTimeout, "The body did not arrive in time", 0},
		{"subscription_exists", nethttp.StatusConflict, "The tenant has a subscription in force", 0},
		{"feature_type_fixed", nethttp.StatusConflict, "The type of a feature does not change", 0},
		{"key_not_usable", nethttp.StatusConflict, "The key is revoked or expired", 0},
		{"dead_letter_not_retryable", nethttp.StatusConflict, "The dead letter cannot be retried now", 0},
		{"dead_letter_not_discardable", nethttp.StatusConflict, "The dead letter cannot be discarded now", 0},
		{"rewind_forward", nethttp.StatusConflict, "A rewind goes back only", 0},
		{"rebuild_in_progress", nethttp.StatusConflict, "A rebuild of the same figures is under way", 0},
		{"rebuild_not_ready", nethttp.StatusConflict, "The rebuild is not ready", 0},
		{"rebuild_promoted", nethttp.StatusConflict, "The rebuild is promoted", 0},
		{"rebuild_abandoned", nethttp.StatusConflict, "The rebuild is abandoned", 0},
		{"rebuild_not_promoted", nethttp.StatusConflict, "The rebuild is not promoted", 0},
		{"rebuild_superseded", nethttp.StatusConflict, "A later rebuild lies over this one", 0},
		{"rollback_expired", nethttp.StatusConflict, "The previous generation is no longer kept", 0},
		{"scope_mixed", nethttp.StatusConflict, "The figures are folded by several versions", 0},
		{"period_not_conserved", nethttp.StatusConflict, "The period cannot be shown alone", 0},
		{"generation_broken", nethttp.StatusConflict, "The generation cannot be shown", 0},
		{"fold_not_held", nethttp.StatusConflict, "The instance does not hold the fold", 0},
		{"body_too_large", nethttp.StatusRequestEntityTooLarge, "The body is too large", 0},
		{"media_type_unsupported", nethttp.StatusUnsupportedMediaType, "The media type is not taken here", 0},
		{"content_encoding_unsupported", nethttp.StatusUnsupportedMediaType, "The content encoding is not taken here", 0},
		{"idempotency_key_reused", nethttp.StatusUnprocessableEntity, "The Idempotency-Key came with another request before", 0},
		{"rate_limited", nethttp.StatusTooManyRequests, "The tenant sends more events than its rate allows", 1},
		{"backlog_full", nethttp.StatusTooManyRequests, "Too many events wait to be published", 5},
		{"internal", nethttp.StatusInternalServerError, "A fault of the service", 0},
		{"unavailable", nethttp.StatusServiceUnavailable, "The event log is not available", 1},
		{"overloaded", nethttp.StatusServiceUnavailable, "There is more to do than can be done in time", 1},
		{"projection_behind", nethttp.StatusServiceUnavailable, "The position has not been folded yet", 1},
		{"not_ready", nethttp.StatusServiceUnavailable, "A dependency does not answer", 1},
	}
}

// Titles of all other codes.
const (
	titleInvalid  = "The request is not valid"
	titleNotFound = "There is no such thing, or it is another's"
)

func refusalOf(code string) refusal {
	for _, r := range refusals() {
		if r.code == code {
			return r
		}
	}
	if strings.HasSuffix(code, "_not_found") {
		return refusal{code, nethttp.StatusNotFound, titleNotFound, 0}
	}
	return refusal{code, nethttp.StatusBadRequest, titleInvalid, 0}
}

// problemOf converts an error of a command or a read to a problem. cause is the error to
// log, nil if only the caller is at fault.
func problemOf(err error) (p *Problem, cause error) {
	var refused *domain.Error
	var full *commands.Overloaded
	switch {
	case errors.As(err, &p):
		return p, nil
	case errors.As(err, &refused): // reads return these, too
		return newProblem(refused.Code, refused.Message).at(refused.Pointer), nil
	case errors.As(err, &full):
		return tooMuch(full), nil
	case isOutage(err):
		return newProblem("unavailable", "The event log does not answer; the outcome of this request is unknown, send the same again"), err
	}
	return newProblem("internal", "A fault of the service; quote the request id to have it found"), err
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
