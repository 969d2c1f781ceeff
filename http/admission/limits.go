// Package admission refuses requests when the instance has no capacity. It limits the requests in
// flight, their memory and the streams, and each tenant's rate of events.
// A request above a limit is refused at once and never waits.
package admission

import (
	"cmp"
	"time"
)

// Requests in flight, by kind, so that reads and changes are answered while ingest is full.
const (
	maxIngests = 2048
	maxOthers  = 1024
)

// Streams of the log that clients hold open. A stream costs a connection and a query every
// tenth of a second, so that there are few.
const (
	maxStreams    = 64
	tenantStreams = 4
)

// Limits bounds all requests of an instance together, and the rate of each tenant. Zero
// fields mean the defaults, which are generous: they stop one client from overloading the
// service, and are not a commercial quota. Bound has the share of one tenant.
type Limits struct {
	// Requests is the maximum number of ingest requests in flight, Others that of all other
	// requests. Requests above it are refused and may be retried.
	Requests, Others int64
	// Streams is the maximum number of open streams of the log.
	Streams int64
	// BodyTime is how long a request waits for a small body.
	BodyTime time.Duration
	// IngestMemory bounds the bytes that ingest requests in flight hold, OtherMemory those of all other requests.
	IngestMemory, OtherMemory int64
	// EventsPerSecond and EventsBurst limit the ingest rate of one tenant.
	EventsPerSecond, EventsBurst float64
}

// OrDefault replaces zero fields by the defaults.
func (l Limits) OrDefault() Limits {
	return Limits{
		Requests:        cmp.Or(l.Requests, maxIngests),
		Others:          cmp.Or(l.Others, maxOthers),
		Streams:         cmp.Or(l.Streams, maxStreams),
		BodyTime:        cmp.Or(l.BodyTime, bodyTime),
		IngestMemory:    cmp.Or(l.IngestMemory, maxIngestMemory),
		OtherMemory:     cmp.Or(l.OtherMemory, maxOtherMemory),
		EventsPerSecond: cmp.Or(l.EventsPerSecond, eventsPerSecond),
		EventsBurst:     cmp.Or(l.EventsBurst, eventsBurst),
	}
}

// Kind holds the bounds of one kind of requests.
type Kind struct{ Slots, Memory Bound }

// Ingest returns the bounds of ingest. Operators send no usage, so nothing is reserved.
func (l *Limits) Ingest() Kind { return Kind{Bound{limit: l.Requests}, Bound{limit: l.IngestMemory}} }

// Other returns the bounds of all other requests.
func (l *Limits) Other() Kind { return Kind{reserved(l.Others, 0), reserved(l.OtherMemory, 0)} }

// Open returns the bound of streams of the log.
func (l *Limits) Open() Bound { return reserved(l.Streams, tenantStreams) }

func reserved(limit, each int64) Bound {
	return Bound{limit: limit, reserve: limit / reservedPart, each: each}
}
