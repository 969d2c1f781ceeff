package main

import (
	"sync"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
)

type consumerRole struct {
	name     string
	consumer projections.Consumer
}

// consumers are the roles that fold or execute.
func (n *node) consumers() []consumerRole {
	letters := &commands.DeadLetters{Store: n.log, Now: time.Now, NewID: newID}
	return []consumerRole{
		{"validator", projections.ValidatorConsumer(newID)},
		{"aggregator", projections.AggregatorConsumer(newID, n.folds, n.newestFold)},
		{"deadletter", projections.DeadLetterConsumer()},
		{"commands", projections.Consumer{
			Name: events.GroupCommands, Topic: events.TopicCommands, Handler: &postgres.Commands{Log: n.log, Letters: letters},
			MaxPerPartition: projections.MaxWithFollowUps,
		}},
		{"projector", projections.EntitlementConsumer()},
	}
}

// wakes hints at each follower of the log that it grew.
type wakes struct {
	mu   sync.Mutex
	list []chan struct{}
}

func (w *wakes) add() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{}, 1)
	w.list = append(w.list, c)
	return c
}

func (w *wakes) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.list {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
