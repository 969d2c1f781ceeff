// Package admission refuses requests when the instance has no capacity. It limits the requests in
// flight, their memory and the streams, in total and for each tenant, and each tenant's rate of events.
// A request above a limit is refused at once and never waits.
package admission

import (
	"cmp"
	"time"
)

// Limits bounds all requests of an instance together, and the share and the rate of each tenant. Zero
// fields mean the defaults, which are generous: they stop one client from overloading the
// service, and are not a commercial quota.
type Limits struct {
	// Requests is the maximum number of ingest requests in flight, Others that of all other
	// requests. Requests above it are refused and may be retried.
	Requests, Others int64
	// TenantRequests and TenantOthers are the shares of one tenant in Requests and Others.
	TenantRequests, TenantOthers int64
	// Streams is the maximum number of open streams of the log, TenantStreams that of one
	// tenant. Tenants together leave OperatorStreams of them to operators.
	Streams, TenantStreams, OperatorStreams int64
	// BodyTime is how long a request without a place waits for a small body.
	BodyTime time.Duration
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
		TenantRequests:  cmp.Or(l.TenantRequests, tenantIngests),
		TenantOthers:    cmp.Or(l.TenantOthers, tenantOthers),
		Streams:         cmp.Or(l.Streams, maxStreams),
		TenantStreams:   cmp.Or(l.TenantStreams, tenantStreams),
		OperatorStreams: cmp.Or(l.OperatorStreams, operatorStreams),
		BodyTime:        cmp.Or(l.BodyTime, bodyTime),
		Memory:          cmp.Or(l.Memory, maxMemory),
		EventsPerSecond: cmp.Or(l.EventsPerSecond, eventsPerSecond),
		EventsBurst:     cmp.Or(l.EventsBurst, eventsBurst),
	}
}
