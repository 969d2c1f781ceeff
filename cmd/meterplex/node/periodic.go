package node

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/offboardings"
	"github.com/meterplex/meterplex/infra/relay"
)

// periodic is work of a role that is looked for at intervals. Any number of instances may look: each effect has a key or a lock of its own.
type periodic struct {
	role   string
	every  time.Duration
	failed string // the text of a failed look in the log
	look   func(context.Context) error
}

// periodics lists the periodic work of the roles.
func (n *Node) periodics() []periodic {
	publications := &relay.Expiry{Pool: n.pool, Retention: n.pipe.retention, Deleted: n.metrics.PublicationsDeleted}
	rows := &store.Retention{Pool: n.pool, Answers: n.cfg.AnswerKeep, Ended: n.cfg.EndedKeep, Reservations: domain.ReservationsKept,
		Logger: n.logger}
	late := &billing.LateReconciles{Periods: n.periods()}
	all := []periodic{
		{"relay", 10 * time.Minute, "cannot delete expired publications; will retry", publications.Look},
		{"commands", 10 * time.Minute, "cannot delete old rows; will retry", rows.Look},
		{"sagas", time.Minute, "cannot close periods that are due; will retry", n.periods().CloseDue},
		{"sagas", 5 * time.Second, "cannot reconcile late usage of closed periods; will retry", late.Look},
		{"biller", 10 * time.Minute, "cannot start the comparison with the billing provider; will retry", n.pushes().StartComparison},
	}
	if n.cfg.Erasures != "" {
		repeat := &offboarding.RepeatErasures{Erasures: n.erasures(), Tenants: n.catalogue(),
			Reader: offboardings.Reader{Catalogue: n.catalogue()}}
		all = append(all, periodic{"sagas", time.Minute, "cannot compare METERPLEX_ERASURES with the database; will retry", repeat.Look})
	}
	return all
}

// reports lists the instance among all instances.
func (n *Node) reports() *store.Instances {
	return &store.Instances{Pool: n.looks, ID: n.instance, Version: n.commit, Roles: n.cfg.Roles, Logger: n.logger}
}
