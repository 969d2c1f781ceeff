package main

import (
	"sync"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/validate"
)

// projections defines the read models.
func (n *node) projections() []projections.Projection { return models.List(n.folds, newID) }

// consumers lists the consumers of all roles.
func (n *node) consumers() []projections.Consumer {
	letters := &commands.DeadLetters{Store: n.log, Now: time.Now, NewID: newID}
	all := []projections.Consumer{
		validate.Consumer(newID),
		{
			Name: events.GroupCommands, Role: "commands", Topic: events.TopicCommands, Handler: &postgres.Commands{Log: n.log, Letters: letters},
			MaxPerPartition: projections.MaxWithFollowUps,
		},
	}
	for _, p := range n.projections() {
		all = append(all, p.Consumer)
	}
	return all
}

// wakes notifies each follower of the log that new events were appended.
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
