package node

import (
	"time"

	"github.com/meterplex/meterplex/commands"

	"github.com/meterplex/meterplex/infra/postgres/store"
)

// offboarding returns the command that ends tenants.
func (n *Node) offboarding() *commands.Offboarding {
	return &commands.Offboarding{Store: &store.Offboardings{Store: n.store}, Quotas: n.quotas(), Periods: n.periods(), Now: time.Now, NewID: newID,
		Wake: n.wakeSagas, Logger: n.logger}
}
