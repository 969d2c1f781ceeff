package relay

import (
	"time"

	"github.com/meterplex/meterplex/events"
)

// Observe holds the relay's hooks for metrics. Each may be nil, must not block, and may be called from
// several goroutines.
type Observe struct {
	Published func(topic events.Topic, records int)            // acknowledged by the broker, including repeats
	Failed    func(err error)                                  // a batch that will be retried
	Hole      func()                                           // a position of the log without an event, at each attempt to read it
	Refused   func(topic events.Topic, registry bool)          // a record was permanently refused; registry: its subject is not registered
	Withheld  func(topic events.Topic)                         // a record was replaced
	Handled   func(handler string, d time.Duration, err error) // see infra/watermill
	// leases that have not expired, reported each second, also if they cannot be renewed
	Leases func(partitions int)
}

func (o Observe) withDefaults() Observe {
	if o.Published == nil {
		o.Published = func(events.Topic, int) {}
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.Hole == nil {
		o.Hole = func() {}
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
