// Package admission refuses requests for which the instance has no capacity: it limits the
// requests in flight, their memory, and each tenant's rate of events. A request above a limit
// is refused at once; nothing waits.
package admission

import "cmp"

// Limits bounds all requests of an instance together, and the rate of each tenant. Zero
// fields mean the defaults, which are generous: they stop one client from overloading the
// service, and are not a commercial quota.
type Limits struct {
	// Requests is the maximum number of ingest requests in flight, Others that of all other
	// requests. Requests above it are refused and may be retried.
	Requests, Others int64
	// Memory bounds the bytes that requests in flight hold; one tenant may hold half of it.
	Memory int64
	// EventsPerSecond and EventsBurst limit the ingest rate of one tenant.
	EventsPerSecond, EventsBurst float64
}

// OrDefault replaces zero fields by the defaults.
func (l Limits) OrDefault() Limits {
	return Limits{
		Requests:        cmp.Or(l.Requests, maxIngests),
		Others:          cmp.Or(l.Others, maxOthers),
		Memory:          cmp.Or(l.Memory, maxMemory),
		EventsPerSecond: cmp.Or(l.EventsPerSecond, eventsPerSecond),
		EventsBurst:     cmp.Or(l.EventsBurst, eventsBurst),
	}
}
