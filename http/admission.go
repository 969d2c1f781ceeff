package http

import (
	"context"
	"math"
	"net"
	nethttp "net/http"
	"sync/atomic"
	"time"

	"github.com/meterplex/meterplex/commands"
)

// Reasons for refusing a request that may be retried: the values of a counter's label.
const (
	becauseRequests    = "requests"    // too many requests in flight
	becauseConnections = "connections" // too many open connections
	becauseMemory      = "memory"      // the bodies in flight are too large together
	becauseQueue       = "queue"       // the wait in the append queue would be too long
	becauseDatabase    = "database"    // the database is unavailable, or its connection pool is exhausted
	becauseRate        = "rate"        // the tenant exceeds its rate
	becauseBacklog     = "backlog"     // too many events wait to be published
	becauseBehind      = "behind"      // a position is not applied yet
)

func reasons() []string {
	return []string{becauseRequests, becauseConnections, becauseMemory, becauseQueue, becauseDatabase, becauseRate, becauseBacklog, becauseBehind}
}

// overloaded is the problem of a request that was not started.
func overloaded(because, detail string) *Problem {
	p := newProblem("overloaded", detail)
	p.because = because
	return p
}

// reason is the label that a problem is counted under, or "" if it is not counted.
func (p *Problem) reason() string {
	switch {
	case p.Code == "rate_limited":
		return becauseRate
	case p.Code == "backlog_full":
		return becauseBacklog
	case p.Code == "projection_behind":
		return becauseBehind
	case p.because != "":
		return p.because
	case p.Code == "unavailable" || p.Code == "overloaded":
		return becauseDatabase
	}
	return ""
}

// longestRetry bounds Retry-After: the load has changed by then.
const longestRetry = 30

// tooMuch converts an Overloaded error of ingest to a problem.
func tooMuch(o *commands.Overloaded) *Problem {
	p := overloaded(becauseQueue, "Too many events wait to be recorded; this request was not begun, send it again later")
	if o.Database {
		p = overloaded(becauseDatabase, "The database has more requests than it answers in time; this one was not begun, send it again later")
	}
	return p.retry(min(max(1, int(math.Ceil(o.Wait.Seconds()))), longestRetry))
}

// counter is a semaphore that never waits. If it is full, the request is refused at once:
// a queue in front of a full service only delays answers.
type counter struct{ n atomic.Int64 }

func (c *counter) enter(bound int64) bool { return c.acquire(1, bound) }

func (c *counter) leave() { c.n.Add(-1) }

// acquire takes n units at once.
func (c *counter) acquire(n, bound int64) bool {
	if c.n.Add(n) > bound {
		c.n.Add(-n)
		return false
	}
	return true
}

// requestCost is a generous estimate of a request's memory beside its body. It limits a
// tenant to half of the requests in flight, however small and slow its bodies are.
const requestCost = 32 << 10

// charge is the memory that one request holds, counted against the global bound and its
// tenant's share. The share keeps one slow tenant with large bodies from excluding the
// others.
type charge struct {
	all, share           *counter // share is nil for operators
	allBound, shareBound int64
	held                 int64
}

// acquire takes n more bytes if they are available.
func (c *charge) acquire(n int64) bool {
	if c.all == nil {
		return true // no bound: a unit test
	}
	if !c.all.acquire(n, c.allBound) {
		return false
	}
	if c.share != nil && !c.share.acquire(n, c.shareBound) {
		c.all.n.Add(-n)
		return false
	}
	c.held += n
	return true
}

// fits reports whether acquire(n) would succeed, without acquiring memory.
func (c *charge) fits(n int64) bool {
	return c.all == nil || c.all.n.Load()+n <= c.allBound && (c.share == nil || c.share.n.Load()+n <= c.shareBound)
}

func (c *charge) release(n int64) {
	c.held -= n
	if c.all != nil {
		c.all.n.Add(-n)
	}
	if c.share != nil {
		c.share.n.Add(-n)
	}
}

// close releases the whole charge.
func (c *charge) close() { c.release(c.held) }

// open starts the charge of an authenticated request.
func (s *service) open(x *exchange) *Problem {
	x.charge = charge{all: &s.memory, allBound: s.limits.Memory, shareBound: s.limits.Memory / 2}
	if x.tenant != nil {
		x.charge.share = &s.ingestRate.of(x.caller.TenantID, s.now(), s.limits).memory
	}
	if !x.charge.acquire(requestCost) {
		return tooLargeTogether()
	}
	return nil
}

func tooLargeTogether() *Problem {
	return overloaded(becauseMemory, "The requests in work take all the memory that they may; send this one again")
}

// admitQueue refuses a request before its body is read if it would wait too long in the
// queue.
func (s *service) admitQueue(x *exchange) error { return s.Ingest.Admit(x.caller) }

// spareConnections are reserved above the clients' bound, so that health checks and
// metrics scrapes still reach a full service.
const spareConnections = 256

type spareKey struct{}

// connected counts a connection. Above the bound, the first request is answered with a
// refusal; above the spare connections, the connection is closed without an answer.
func (e *edge) connected(ctx context.Context, c net.Conn) context.Context {
	n := e.connections.n.Add(1)
	switch {
	case n > e.limits.Connections+spareConnections:
		_ = c.Close()
	case n > e.limits.Connections:
		return context.WithValue(ctx, spareKey{}, true)
	}
	return ctx
}

func (e *edge) connection(_ net.Conn, state nethttp.ConnState) {
	if state == nethttp.StateClosed || state == nethttp.StateHijacked {
		e.connections.leave()
	}
}

// A large body must arrive at slowestBody bytes per second, plus bodyGrace. Small bodies
// have the connection's read timeout.
const (
	slowestBody = 128 << 10
	bodyGrace   = 10 * time.Second
	smallBody   = 64 << 10
)

// setReadDeadline sets the read deadline of a large body, or of one of unknown size.
func (s *service) setReadDeadline(r *nethttp.Request) (relax func()) {
	size := r.ContentLength
	if size >= 0 && size <= smallBody {
		return func() {}
	}
	if size < 0 {
		size = s.limits.Body
	}
	x, start := exchangeOf(r.Context()), time.Now()
	if x.to == nil {
		return func() {} // a unit test
	}
	control := nethttp.NewResponseController(x.to)
	_ = control.SetReadDeadline(start.Add(bodyGrace + time.Duration(size)*time.Second/slowestBody))
	return func() { _ = control.SetReadDeadline(start.Add(readTime)) }
}
