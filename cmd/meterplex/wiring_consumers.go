package main

import (
	"sync"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
)

// liveGeneration is the one that migrations make; others come with rebuilds.
const liveGeneration = 1

// validatorRecords bounds the verdicts of one transaction over all partitions: the
// heads are held while they are appended, and ingest waits for them.
const validatorRecords = 1000

type consumerRole struct {
	name     string
	consumer projections.Consumer
}

// consumers are the roles that fold or execute.
func (n *node) consumers() []consumerRole {
	consumer := func(name string, topic events.Topic, h projections.Handler, most int) projections.Consumer {
		return projections.Consumer{Name: name, Generation: liveGeneration, Topic: topic, Handler: h, MaxPerPartition: most}
	}
	validator := consumer(events.GroupValidator, events.TopicUsageRaw, &projections.Validator{NewID: newID}, projections.MaxWithFollowUps)
	aggregator := consumer(events.GroupAggregator, events.TopicUsageValidated,
		&projections.UsageAggregates{Generation: liveGeneration, NewID: newID}, projections.MaxWithoutFollowUps)
	validator.Parks, aggregator.Parks = true, true
	validator.MaxRecords = validatorRecords
	letters := &commands.DeadLetters{Store: n.log, Now: time.Now, NewID: newID}
	return []consumerRole{
		{"validator", validator},
		{"aggregator", aggregator},
		{"deadletter", consumer(events.GroupDeadLetter, events.TopicUsageDeadLetter,
			&projections.DeadLetterEvents{Generation: liveGeneration}, projections.MaxWithoutFollowUps)},
		{"commands", consumer(events.GroupCommands, events.TopicCommands, &postgres.Commands{Log: n.log, Letters: letters}, projections.MaxWithFollowUps)},
		{"projector", consumer(events.GroupEntitlements, 0, &projections.EntitlementReads{Generation: liveGeneration}, projections.MaxWithoutFollowUps)},
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
