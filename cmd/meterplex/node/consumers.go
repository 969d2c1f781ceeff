package node

import (
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"

	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/validate"
)

// projections defines the read models.
func (n *Node) projections() []projections.Projection { return models.List(n.Folds, newID) }

// consumers lists the consumers of all roles.
func (n *Node) consumers() []projections.Consumer {
	letters := &commands.DeadLetters{Store: n.store, Now: time.Now, NewID: newID}
	all := []projections.Consumer{
		validate.Consumer(newID, n.histories),
		{
			Name: events.GroupCommands, Role: "commands", Topic: events.TopicCommands, MaxPerPartition: projections.MaxWithFollowUps,
			Handler: &store.Commands{Log: n.log, Letters: letters, Workers: map[events.Subject]func(){
				events.RebuildRequested: n.rebuildRequests.notify, events.ReplayRequested: n.replayRequests.notify,
			}},
		},
	}
	for _, p := range n.projections() {
		all = append(all, p.Consumer)
	}
	return all
}

// handovers returns a handover to each consumer of this instance that every event passes.
func (n *Node) handovers() (all consume.Handovers) {
	for _, c := range n.consumers() {
		if c.Hot && c.Topic != 0 && n.has(c.Role) {
			if all == nil {
				all = consume.Handovers{}
			}
			all[c.Topic] = consume.NewHandover()
		}
	}
	return all
}

// hint tells a worker that there may be work. One that is not yet seen stands for all.
type hint chan struct{}

func newHint() hint { return make(hint, 1) }

func (h hint) notify() {
	select {
	case h <- struct{}{}:
	default:
	}
}
