package node

import (
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

func (n *Node) retention() *store.Retention {
	return &store.Retention{Pool: n.pool, Answers: n.cfg.AnswerKeep, Ended: n.cfg.EndedKeep, Reservations: domain.ReservationsKept,
		Logger: n.logger}
}

// reports lists the instance among all instances.
func (n *Node) reports() *store.Instances {
	return &store.Instances{Pool: n.looks, ID: n.instance, Version: n.commit, Roles: n.cfg.Roles, Logger: n.logger}
}
