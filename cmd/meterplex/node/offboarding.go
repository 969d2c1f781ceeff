package node

import (
	"time"

	"github.com/meterplex/meterplex/commands/offboarding"

	"github.com/meterplex/meterplex/infra/erasures"
	"github.com/meterplex/meterplex/infra/postgres/store/offboardings"
	"github.com/meterplex/meterplex/projections/models"
)

// offboarding returns the command that ends tenants.
func (n *Node) offboarding() *offboarding.Commands {
	return &offboarding.Commands{Store: &offboardings.Offboardings{Store: n.store}, Quotas: n.quotas(), Periods: n.periods(),
		Now: time.Now, NewID: newID,
		Wake: n.wakeSagas, Logger: n.logger}
}

// erasures returns the command that erases personal data.
func (n *Node) erasures() *offboarding.Erasures {
	c := &offboarding.Erasures{Store: &offboardings.Erasures{Store: n.store, Models: models.PersonalData()}, Now: time.Now, NewID: newID,
		Wake: n.wakeSagas, Logger: n.logger}
	if n.cfg.Erasures != "" {
		c.Files = erasures.Folder(n.cfg.Erasures)
	}
	return c
}
