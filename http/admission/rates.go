package admission

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// The ingest rate of one tenant, in events.
const (
	eventsPerSecond = 100_000
	eventsBurst     = 200_000
)

// Rates holds the token buckets of tenants' ingest, one token per event. A bucket is
// local to this instance, because the bound protects the instance.
type Rates struct {
	perSecond, burst float64  // of one tenant
	buckets          sync.Map // uuid.UUID → *bucket
}

// NewRates returns buckets that each hold up to burst tokens.
func NewRates(perSecond, burst float64) *Rates { return &Rates{perSecond: perSecond, burst: burst} }

// bucket holds the tokens of one tenant, and counts the resources that its requests hold.
type bucket struct {
	mu     sync.Mutex
	tokens float64
	at     time.Time
	holds  Tenant
}

// Tenant returns the counters of a tenant.
func (r *Rates) Tenant(tenant uuid.UUID, now time.Time) *Tenant { return &r.of(tenant, now).holds }

// Holding returns the number of tenants whose requests hold anything. It looks at each tenant that sent a request.
func (r *Rates) Holding() (tenants int) {
	r.buckets.Range(func(_, b any) bool {
		if b.(*bucket).holds.any() {
			tenants++
		}
		return true
	})
	return tenants
}

// of returns a tenant's bucket; a new bucket is full.
func (r *Rates) of(tenant uuid.UUID, now time.Time) *bucket {
	found, known := r.buckets.Load(tenant)
	if !known {
		found, _ = r.buckets.LoadOrStore(tenant, &bucket{tokens: r.burst, at: now})
	}
	return found.(*bucket)
}

// Take removes n tokens if they are available. It returns the remaining tokens and, if
// there were too few, the time until there are enough.
func (r *Rates) Take(tenant uuid.UUID, n int, now time.Time) (left float64, wait time.Duration, ok bool) {
	b := r.of(tenant, now)
	b.mu.Lock()
	defer b.mu.Unlock()
	if passed := now.Sub(b.at); passed > 0 {
		b.tokens = min(r.burst, b.tokens+passed.Seconds()*r.perSecond)
		b.at = now
	}
	// A batch larger than the burst waits for a full bucket and leaves a debt.
	if missing := min(float64(n), r.burst) - b.tokens; missing > 0 {
		return b.tokens, time.Duration(missing / r.perSecond * float64(time.Second)), false
	}
	b.tokens -= float64(n)
	return b.tokens, 0, true
}
