package edge

import (
	"math"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/problem"
)

// AdmitEvents takes n tokens and sets the rate limit headers, so that a client knows the
// limit before it reaches it (draft-ietf-httpapi-ratelimit-headers).
func (e *Edge) AdmitEvents(header http.Header, tenant uuid.UUID, n int) *problem.Problem {
	left, wait, ok := e.rates.Take(tenant, n, e.now())
	reset := math.Ceil((e.limits.EventsBurst - left) / e.limits.EventsPerSecond)
	header["Ratelimit-Policy"] = e.ratePolicy
	header["Ratelimit"] = []string{`"events";r=` + strconv.FormatInt(int64(max(left, 0)), 10) + ";t=" + strconv.Itoa(int(reset))}
	if ok {
		return nil
	}
	return problem.New("rate_limited", "The tenant exceeds its rate; no event of the batch was stored, retry later").
		Retry(max(1, int(math.Ceil(wait.Seconds()))))
}

// tenantOf returns the counters of the resources that a tenant's requests hold.
func (e *Edge) tenantOf(id uuid.UUID) *admission.Tenant { return e.rates.Tenant(id, e.now()) }

// ratePolicy is the RateLimit-Policy header.
func ratePolicy(l admission.Limits) []string {
	window := math.Ceil(l.EventsBurst / l.EventsPerSecond)
	return []string{`"events";q=` + strconv.FormatInt(int64(l.EventsBurst), 10) + ";w=" + strconv.Itoa(int(window))}
}
