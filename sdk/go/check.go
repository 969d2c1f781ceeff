package meterplex

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// CheckRequest asks whether an amount of a feature may be used.
type CheckRequest struct {
	Feature string
	Amount  int64 // 0: 1
	// MinPosition asks for an answer that contains the event at this position, e.g. of a Verdict. The service waits for it up to Wait (at
	// most 30 s; 0: not at all); then the error has the code projection_behind.
	MinPosition string
	Wait        time.Duration
}

// Sources of a Check.
const (
	SourceService = "service"
	SourceCache   = "cache"  // the last answer of the service
	SourcePolicy  = "policy" // Options.CheckPolicy
)

// Check is the answer about a feature.
type Check struct {
	Allowed       bool   `json:"allowed"`
	Source        string `json:"-"` // SourceService, SourceCache or SourcePolicy
	Feature       string `json:"feature"`
	Type          string `json:"type"`   // BOOLEAN, QUOTA or METERED
	Reason        string `json:"reason"` // of a refusal
	Account              // Limit and Remaining are nil without a limit
	LimitBehavior string `json:"limitBehavior"` // HARD or SOFT
	AsOfPosition  string `json:"asOfPosition"`
	Raw
}

// Check is a hint whether an amount may be used, for a fast answer; Consume decides. It returns within Options.CheckTimeout (500 ms), and
// Wait.
//
// Without an answer of the service it answers from its cache: the last answer about the feature, if it is at most Options.MaxStale old, its
// ResetAt has not passed, and a HARD limit's Remaining holds the amount and those checked since. Otherwise the answer is
// Options.CheckPolicy. An error is a refusal of the service, e.g. of the key, or of ctx.
func (c *Client) Check(ctx context.Context, r CheckRequest) (*Check, error) {
	r.Amount = or(r.Amount, 1)
	query := url.Values{"amount": {strconv.FormatInt(r.Amount, 10)}}
	if r.MinPosition != "" {
		query.Set("minPosition", r.MinPosition)
	}
	asked := request{method: http.MethodGet, path: entitlement(r.Feature, "check"), query: query, wait: r.Wait, member: "allowed"}
	a, err := c.once(ctx, asked, c.options.CheckTimeout)
	if err == nil && asked.isAnswer(a) {
		if answer, err := decode[Check](a.body); err == nil {
			answer.Source = SourceService
			c.cache.put(r.Feature, answer)
			return answer, nil
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if refusal := refusalOf(a, err); isFinal(refusal) {
		return nil, refusal
	}
	if cached := c.cache.get(r.Feature, r.Amount, c.options.MaxStale); cached != nil {
		return cached, nil
	}
	return &Check{Allowed: c.options.CheckPolicy == Allow, Source: SourcePolicy, Feature: r.Feature}, nil
}

// checkCache holds the last answer about each feature.
type checkCache struct {
	mu    sync.Mutex
	known map[string]*checked
}

type checked struct {
	answer Check
	at     time.Time
	since  int64 // amounts that were allowed from the cache
}

func (cc *checkCache) put(feature string, answer *Check) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if cc.known == nil {
		cc.known = map[string]*checked{}
	}
	cc.known[feature] = &checked{answer: *answer, at: time.Now()}
}

// get answers from the cache, nil if it cannot.
func (cc *checkCache) get(feature string, amount int64, maxStale time.Duration) *Check {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	known := cc.known[feature]
	if known == nil || time.Since(known.at) > maxStale || known.answer.ResetAt != nil && !time.Now().Before(*known.answer.ResetAt) {
		return nil
	}
	answer := known.answer
	answer.Source = SourceCache
	if answer.Remaining != nil && (answer.LimitBehavior == "HARD" || !answer.Allowed) {
		rest := *answer.Remaining - known.since
		if amount > rest {
			return nil
		}
		known.since += amount
		answer.Allowed, answer.Reason, answer.Remaining = true, "", &rest
	}
	return &answer
}
