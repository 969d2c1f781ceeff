package problem

import (
	"net/http"
	"strings"
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
		{"rate_limited", http.StatusTooManyRequests, "The tenant is over its rate or its share", 1},
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
