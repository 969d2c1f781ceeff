package http

import (
	"math"
	nethttp "net/http"
	"strconv"

	"github.com/google/uuid"
)

// admitEvents takes n tokens and sets the rate limit headers, so that a client knows the
// limit before it reaches it (draft-ietf-httpapi-ratelimit-headers).
func (e *edge) admitEvents(header nethttp.Header, tenant uuid.UUID, n int) *Problem {
	left, wait, ok := e.rates.take(tenant, n, e.now())
	reset := math.Ceil((e.limits.EventsBurst - left) / e.limits.EventsPerSecond)
	header["Ratelimit-Policy"] = e.ratePolicy
	header["Ratelimit"] = []string{`"events";r=` + strconv.FormatInt(int64(max(left, 0)), 10) + ";t=" + strconv.Itoa(int(reset))}
	if ok {
		return nil
	}
	return newProblem("rate_limited", "The tenant is over its rate; no event of the batch was stored, send it again later").
		retry(max(1, int(math.Ceil(wait.Seconds()))))
}

// ratePolicy is the RateLimit-Policy header.
func ratePolicy(l Limits) []string {
	window := math.Ceil(l.EventsBurst / l.EventsPerSecond)
	return []string{`"events";q=` + strconv.FormatInt(int64(l.EventsBurst), 10) + ";w=" + strconv.Itoa(int(window))}
}
