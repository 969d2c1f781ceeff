package problem

import (
	"math"

	"github.com/meterplex/meterplex/commands"
)

// Reasons for refusing a request that may be retried: the values of a counter's label.
const (
	BecauseRequests    = "requests"    // too many requests in flight
	BecauseConnections = "connections" // too many open connections
	BecauseTenant      = "tenant"      // the tenant has its share of the requests or streams
	becauseMemory      = "memory"      // the bodies in flight are too large together
	becauseQueue       = "queue"       // the wait in the append queue would be too long
	becauseDatabase    = "database"    // the database is unavailable, or its connection pool is exhausted
	becauseRate        = "rate"        // the tenant exceeds its rate
	becauseBacklog     = "backlog"     // too many events wait to be published
	becauseBehind      = "behind"      // a position is not applied yet
)

// Reasons lists the labels that problems are counted under.
func Reasons() []string {
	return []string{BecauseRequests, BecauseConnections, BecauseTenant, becauseMemory, becauseQueue, becauseDatabase, becauseRate,
		becauseBacklog, becauseBehind}
}

// Overloaded is the problem of a request that was not started.
func Overloaded(because, detail string) *Problem {
	p := New("overloaded", detail)
	p.because = because
	return p
}

// Reason is the label that a problem is counted under, or "" if it is not counted.
func (p *Problem) Reason() string {
	switch {
	case p.because != "":
		return p.because
	case p.Code == "rate_limited":
		return becauseRate
	case p.Code == "backlog_full":
		return becauseBacklog
	case p.Code == "projection_behind":
		return becauseBehind
	case p.Code == "unavailable" || p.Code == "overloaded":
		return becauseDatabase
	}
	return ""
}

// longestRetry bounds Retry-After: the load has changed by then.
const longestRetry = 30

// tooMuch converts an Overloaded error of ingest to a problem.
func tooMuch(o *commands.Overloaded) *Problem {
	p := Overloaded(becauseQueue, "Overloaded: the append queue is full; the request was not started, retry later")
	if o.Database {
		p = Overloaded(becauseDatabase, "Overloaded: the database is too slow; the request was not started, retry later")
	}
	return p.Retry(min(max(1, int(math.Ceil(o.Wait.Seconds()))), longestRetry))
}

// OverShare is the problem of a tenant's request that its share excludes, while the instance has
// capacity for others.
func OverShare(detail string) *Problem {
	p := New("rate_limited", detail)
	p.because = BecauseTenant
	return p
}

// OutOfMemory is the problem of a request that the memory bound excludes.
func OutOfMemory() *Problem {
	return Overloaded(becauseMemory, "Out of memory for request bodies; retry later")
}

// OutOfMemoryForAnswer is the problem of a request whose answer the memory bound excludes.
func OutOfMemoryForAnswer() *Problem {
	return Overloaded(becauseMemory, "Out of memory for the answer; ask for fewer entries with a smaller limit, or retry later")
}
