package node

import (
	"log/slog"
	"testing"

	"github.com/meterplex/meterplex/infra/stripe"
)

// TestWithoutAStripeKeyThereIsNoProvider: a nil pointer in the interface would not be nil, and pushes would not wait.
func TestWithoutAStripeKeyThereIsNoProvider(t *testing.T) {
	n := &Node{}
	if p := n.provider(); p != nil {
		t.Errorf("a provider without a key: %v", p)
	}
	n.stripe = stripe.New("sk_test_1", "", slog.New(slog.DiscardHandler))
	defer n.stripe.Close()
	if n.provider() == nil {
		t.Error("no provider with a key")
	}
}
