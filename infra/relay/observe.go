package relay

import (
	"time"

	"github.com/meterplex/meterplex/events"
)

// Observe is what the relay tells of itself. Each hook may be nil, must not
// block, and may be called from several goroutines.
type Observe struct {
	Published func(topic events.Topic, records int)            // acknowledged by the broker, repetitions included
	Failed    func(err error)                                  // a batch that is tried again
	Refused   func(topic events.Topic, registry bool)          // a try at a record that alone cannot be published; registry: its subject is not named there
	Withheld  func(topic events.Topic)                         // a record was replaced
	Handled   func(handler string, d time.Duration, err error) // as infra/watermill tells it
	Leases    func(partitions int)                             // each second: those held here
}

func (o Observe) withDefaults() Observe {
	if o.Published == nil {
		o.Published = func(events.Topic, int) {}
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.Refused == nil {
		o.Refused = func(events.Topic, bool) {}
	}
	if o.Withheld == nil {
		o.Withheld = func(events.Topic) {}
	}
	if o.Leases == nil {
		o.Leases = func(int) {}
	}
	return o
}
