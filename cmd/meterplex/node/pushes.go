package node

import (
	"time"

	"github.com/meterplex/meterplex/commands/billing"

	"github.com/meterplex/meterplex/infra/postgres/store/pushes"
)

const (
	// pushSlots bounds the calls of the billing provider at the same time. A call holds no connection of the database.
	pushSlots = 8
	// totalsAfter is the time after a delivery until the provider's totals include it.
	totalsAfter = 10 * time.Minute
)

// provider returns the billing provider; nil without a key.
func (n *Node) provider() billing.Provider {
	if n.stripe == nil {
		return nil
	}
	return n.stripe
}

// pushes returns the command that pushes what is due.
func (n *Node) pushes() *billing.Pushes {
	return &billing.Pushes{Store: &pushes.Pushes{Store: n.store}, Provider: n.provider(), Now: time.Now, NewID: newID, Wake: n.wakeSagas,
		Observed: n.metrics.PushAttempted, Logger: n.logger, Settle: totalsAfter}
}
