package commands

import (
	"context"
	"math/big"
	"time"

	"github.com/meterplex/meterplex/domain"
)

// BillingProvider counts amounts for its customers' invoices.
type BillingProvider interface {
	// Send makes one attempt. Every outcome is a result, also an answer that was lost.
	Send(ctx context.Context, p domain.Push) domain.PushResult
	// Total returns the amount that the provider counted for a customer's event with timestamps in [from, to).
	Total(ctx context.Context, customer, event string, from, to time.Time) (*big.Int, error)
}
