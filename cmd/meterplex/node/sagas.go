package node

import (
	"github.com/meterplex/meterplex/commands"

	"github.com/meterplex/meterplex/infra/postgres/store"
)

// sagaKinds lists the kinds of sagas that this binary runs.
func (n *Node) sagaKinds() []commands.SagaKind { return nil }

func (n *Node) sagas() *commands.Sagas {
	return &commands.Sagas{Store: &store.Sagas{Store: n.store}, Kinds: n.sagaKinds(), Wake: n.sagaRequests.notify, Logger: n.logger}
}

// sagaRunner returns the worker that runs the steps of sagas.
func (n *Node) sagaRunner() *commands.SagaRunner {
	return &commands.SagaRunner{
		Queue: &store.Sagas{Store: n.store}, Kinds: n.sagaKinds(), NewID: newID, Requests: n.sagaRequests, Ended: n.metrics.SagaEnded, Logger: n.logger,
	}
}

// sagaNames lists the names of the kinds.
func (n *Node) sagaNames() (names []string) {
	for _, k := range n.sagaKinds() {
		names = append(names, k.Name)
	}
	return names
}
