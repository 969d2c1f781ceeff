package node

import (
	"context"
	"slices"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/closes"
)

// sagaKinds lists the kinds of sagas that the role sagas runs.
func (n *Node) sagaKinds() []commands.SagaKind {
	periods := n.periods()
	return []commands.SagaKind{periods.CloseKind(), periods.ReconcileKind(), n.offboarding().OffboardingKind(), n.erasures().ErasureKind()}
}

// pushKinds lists the kinds of sagas that the role biller runs. They have a runner of their own: a slow provider delays no close.
func (n *Node) pushKinds() []commands.SagaKind {
	pushes := n.pushes()
	return []commands.SagaKind{pushes.PushKind(), pushes.CompareKind()}
}

// allKinds lists the kinds of sagas that this binary runs.
func (n *Node) allKinds() []commands.SagaKind {
	return slices.Concat(n.sagaKinds(), n.pushKinds(), n.replayKinds())
}

// wakeSagas wakes the runners of this instance.
func (n *Node) wakeSagas() {
	n.sagaRequests.Notify()
	n.pushRequests.Notify()
	n.replayRequests.Notify()
}

// periods returns the command that closes periods and decides on their adjustments.
func (n *Node) periods() *billing.Periods {
	return &billing.Periods{Store: &closes.Periods{Store: n.store, Figures: n.Folds.PeriodFigures()}, Now: time.Now, NewID: newID,
		Wake: n.wakeSagas, Logger: n.logger}
}

func (n *Node) sagas() *commands.Sagas {
	return &commands.Sagas{Store: &store.Sagas{Store: n.store}, Kinds: n.allKinds(), Wake: n.wakeSagas, Logger: n.logger}
}

// sagaRests leaves most of the time of each slot to requests, while many periods are closed at once.
const sagaRests = 6

// runSagas runs the steps of sagas until ctx ends. Zero slots and rests are the defaults.
func (n *Node) runSagas(ctx context.Context, kinds []commands.SagaKind, requests loop.Hint, slots, rests int) error {
	r := &commands.SagaRunner{Queue: &store.Sagas{Store: n.store}, Kinds: kinds, NewID: newID, Requests: requests, Ticks: n.ticks,
		Ended: n.metrics.SagaEnded, Logger: n.logger, Slots: slots, Rests: rests}
	return r.Run(ctx)
}

// sagaNames lists the names of the kinds.
func (n *Node) sagaNames() (names []string) {
	for _, k := range n.allKinds() {
		names = append(names, k.Name)
	}
	return names
}
