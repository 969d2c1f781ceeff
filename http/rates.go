package http

import (
	"math"
	nethttp "net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
)

// rates holds the token buckets of tenants' ingest, one token per event. A bucket is
// local to this instance, because the bound protects the instance.
type rates struct{ buckets sync.Map } // uuid.UUID → *bucket

func newRates() *rates { return &rates{} }

type bucket struct {
	mu     sync.Mutex
	tokens float64
	at     time.Time
	memory counter // bytes held by the tenant's requests in flight
}

// of returns a tenant's bucket; a new bucket is full.
func (r *rates) of(tenant uuid.UUID, now time.Time, l Limits) *bucket {
	found, known := r.buckets.Load(tenant)
	if !known {
		found, _ = r.buckets.LoadOrStore(tenant, &bucket{tokens: l.EventsBurst, at: now})
	}
	return found.(*bucket)
}

// take removes n tokens if they are available. It returns the remaining tokens and, if
// there were too few, the time until there are enough.
func (r *rates) take(tenant uuid.UUID, n int, now time.Time, l Limits) (left float64, wait time.Duration, ok bool) {
	b := r.of(tenant, now, l)
	b.mu.Lock()
	defer b.mu.Unlock()
	if passed := now.Sub(b.at); passed > 0 {
		b.tokens = min(l.EventsBurst, b.tokens+passed.Seconds()*l.EventsPerSecond)
		b.at = now
	}
	// A batch larger than the burst waits for a full bucket and leaves a debt.
	if missing := min(float64(n), l.EventsBurst) - b.tokens; missing > 0 {
		return b.tokens, time.Duration(missing / l.EventsPerSecond * float64(time.Second)), false
	}
	b.tokens -= float64(n)
	return b.tokens, 0, true
}

// admitEvents takes n tokens and sets the rate limit headers, so that a client knows the
// limit before it reaches it (draft-ietf-httpapi-ratelimit-headers).
func (s *service) admitEvents(header nethttp.Header, tenant uuid.UUID, n int) *Problem {
	left, wait, ok := s.ingestRate.take(tenant, n, s.now(), s.limits)
	reset := math.Ceil((s.limits.EventsBurst - left) / s.limits.EventsPerSecond)
	header["Ratelimit-Policy"] = s.ratePolicy
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

// admitBacklog refuses ingest while too many events wait to be published.
func (s *service) admitBacklog() *Problem {
	if s.Backlog == nil {
		return nil
	}
	if waiting, bound := s.Backlog(); waiting > bound {
		return newProblem("backlog_full", "Too many events wait to be published; no event of the batch was stored, send it again later")
	}
	return nil
}
