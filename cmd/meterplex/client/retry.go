package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// The bound of a wait doubles from firstWait up to longestWait. Each wait is random
// between zero and the bound (full jitter), so that clients that failed together do
// not retry together.
const (
	firstWait   = 200 * time.Millisecond
	longestWait = 10 * time.Second
)

// Unreachable is the error of a request without a complete response: the service may
// or may not have executed it.
type Unreachable struct {
	Base  string
	Cause error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("no answer from %s: %v\n  hint: is the service running there? meterplex serve starts it; --server or "+
		"METERPLEX_URL is its address", e.Base, e.Cause)
}

func (e *Unreachable) Unwrap() error { return e.Cause }

// retrying retries a request until it has a final response, RetryFor has passed or
// ctx ends.
func (c *Client) retrying(ctx context.Context, try func() (json.RawMessage, error)) (json.RawMessage, error) {
	end := time.Now().Add(c.RetryFor)
	for n := 0; ; n++ {
		body, err := try()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return body, err
		}
		wait := backoff(n, err)
		if time.Now().Add(wait).After(end) {
			return nil, err
		}
		if n == 0 {
			c.report("meterplex: %s; trying again for up to %s", Brief(err), c.RetryFor)
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	if p, ok := errors.AsType[*Problem](err); ok {
		switch p.Status {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
			http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	_, ok := errors.AsType[*Unreachable](err)
	return ok
}

// backoff returns the wait before a retry, never shorter than Retry-After.
func backoff(n int, err error) time.Duration {
	most := longestWait
	if n < 6 {
		most = min(longestWait, firstWait<<n)
	}
	wait := rand.N(most)
	if p, ok := errors.AsType[*Problem](err); ok {
		wait += p.retryAfter
	}
	return wait
}

// retryAfter parses a Retry-After header: seconds, or a date.
func retryAfter(header string, now time.Time) time.Duration {
	if s, err := strconv.Atoi(header); err == nil && s >= 0 && s <= int((24*time.Hour).Seconds()) {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(0, at.Sub(now)), 24*time.Hour)
	}
	return 0
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
