package edge

import "time"

// Limits bounds the resources of one request and of all requests together. Zero fields
// mean the values of DefaultLimits.
type Limits struct {
	// Body is the maximum size of a body in bytes, both as sent and decompressed.
	Body int64
	// Requests is the maximum number of ingest requests in flight, Others that of all other
	// requests. Requests above it are refused and may be retried.
	Requests, Others int64
	// Memory bounds the bytes that requests in flight hold; one tenant may hold half of it.
	Memory int64
	// Connections is the maximum number of open client connections.
	Connections int64
	// Time is the timeout of a request.
	Time time.Duration
	// Settle is the maximum delay of the answer to a change of a subscription, until checks
	// see the change.
	Settle time.Duration
	// EventsPerSecond and EventsBurst limit the ingest rate of one tenant.
	EventsPerSecond, EventsBurst float64
}

// DefaultLimits returns generous limits. They stop one client from overloading the
// service; they are not a commercial quota.
func DefaultLimits() Limits {
	return Limits{
		Body:            4 << 20,
		Requests:        2048,
		Others:          1024,
		Memory:          64 << 20,
		Connections:     4096,
		Time:            40 * time.Second, // more than maxWait
		Settle:          time.Second,
		EventsPerSecond: 100_000,
		EventsBurst:     200_000,
	}
}

// OrDefault replaces zero fields by those of DefaultLimits.
func (l Limits) OrDefault() Limits {
	d := DefaultLimits()
	if l.Body == 0 {
		l.Body = d.Body
	}
	if l.Requests == 0 {
		l.Requests = d.Requests
	}
	if l.Others == 0 {
		l.Others = d.Others
	}
	if l.Memory == 0 {
		l.Memory = d.Memory
	}
	if l.Connections == 0 {
		l.Connections = d.Connections
	}
	if l.Time == 0 {
		l.Time = d.Time
	}
	if l.Settle == 0 {
		l.Settle = d.Settle
	}
	if l.EventsPerSecond == 0 {
		l.EventsPerSecond = d.EventsPerSecond
	}
	if l.EventsBurst == 0 {
		l.EventsBurst = d.EventsBurst
	}
	return l
}
