package api

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/http/edge"
)

// CheckEvery is how long an answer without a time limit continues after its key's revocation is known here.
const CheckEvery = 100 * time.Millisecond

// confirmed authenticates the request of a long answer again while it is written: its key may be revoked meanwhile, or its tenant
// suspended.
type confirmed struct {
	edge *edge.Edge
	x    *edge.Exchange
	at   time.Time // of the last authentication
}

func confirmedOf(e *edge.Edge, x *edge.Exchange) *confirmed { return &confirmed{e, x, time.Now()} }

// check returns the problem of a request whose key is refused. It authenticates once in checkEvery at most.
func (c *confirmed) check(ctx context.Context) error {
	if time.Since(c.at) < CheckEvery {
		return nil
	}
	c.at = time.Now()
	if p := c.edge.Authenticate(c.x.From.WithContext(ctx), c.x); p != nil {
		return p
	}
	return nil
}
