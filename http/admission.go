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

// Why a request was sent away that may come again: the label of a counter.
const (
	becauseRequests    = "requests"    // too many are in work
	becauseConnections = "connections" // too many are open
	becauseMemory      = "memory"      // the bodies in work are too large together
	becauseQueue       = "queue"       // what is to be recorded waits too long
	becauseDatabase    = "database"    // it is away, or none of its connections comes free
	becauseRate        = "rate"        // the tenant is over its rate
	becauseBacklog     = "backlog"     // too many events wait to be published
	becauseBehind      = "behind"      // a position is not folded yet
)

func reasons() []string {
	return []string{becauseRequests, becauseConnections, becauseMemory, becauseQueue, becauseDatabase, becauseRate, becauseBacklog, becauseBehind}
}

// overloaded says that this request was not begun.
func overloaded(because, detail string) *Problem {
	p := newProblem("overloaded", detail)
	p.because = because
	return p
}

// reason is the label that a problem is counted under, "" for those that are not.
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

// longestRetry bounds what a client is told to wait: by then much has changed.
const longestRetry = 30

// tooMuch is the answer to what would wait too long.
func tooMuch(o *commands.Overloaded) *Problem {
	p := overloaded(becauseQueue, "More events wait to be recorded than are in reasonable time; nothing of this request was begun, send it again later")
	if o.Database {
		p = overloaded(becauseDatabase, "More is asked of the database than it answers in time; nothing of this request was begun, send it again later")
	}
	return p.retry(min(max(1, int(math.Ceil(o.Wait.Seconds()))), longestRetry))
}

// counter is a semaphore that never waits: who finds it full is sent away at
// once, since a queue in front of a full service only makes answers late.
type counter struct{ n atomic.Int64 }

func (c *counter) enter(bound int64) bool { return c.take(1, bound) }

func (c *counter) leave() { c.n.Add(-1) }

// take is enter of n at once.
func (c *counter) take(n, bound int64) bool {
	if c.n.Add(n) > bound {
		c.n.Add(-n)
		return false
	}
	return true
}

// requestCost is what a request takes beside its body, amply: a tenant's share is
// then half of the places, too, however small and slow its bodies are.
const requestCost = 32 << 10

// charge is what one request holds of the memory that all may have, and of the
// share that its tenant may: one that sends slowly and much keeps no others out.
type charge struct {
	all, share           *counter // share is nil for operators
	allBound, shareBound int64
	held                 int64
}

// more takes n bytes more, if there are so many.
func (c *charge) more(n int64) bool {
	if c.all == nil {
		return true // nobody bounds it: a test of a part
	}
	if !c.all.take(n, c.allBound) {
		return false
	}
	if c.share != nil && !c.share.take(n, c.shareBound) {
		c.all.n.Add(-n)
		return false
	}
	c.held += n
	return true
}

// fits tells whether more would take n bytes, without taking them.
func (c *charge) fits(n int64) bool {
	return c.all == nil || c.all.n.Load()+n <= c.allBound && (c.share == nil || c.share.n.Load()+n <= c.shareBound)
}

func (c *charge) less(n int64) {
	c.held -= n
	if c.all != nil {
		c.all.n.Add(-n)
	}
	if c.share != nil {
		c.share.n.Add(-n)
	}
}

// close gives all of it back.
func (c *charge) close() { c.less(c.held) }

// open begins the charge of a request whose caller is known.
func (s *service) open(x *exchange) *Problem {
	x.charge = charge{all: &s.memory, allBound: s.limits.Memory, shareBound: s.limits.Memory / 2}
	if x.tenant != nil {
		x.charge.share = &s.ingestRate.of(x.caller.TenantID, s.now(), s.limits).memory
	}
	if !x.charge.more(requestCost) {
		return tooLargeTogether()
	}
	return nil
}

func tooLargeTogether() *Problem {
	return overloaded(becauseMemory, "The requests in work take all the memory that they may; send this one again")
}

// admitQueue refuses before the body is read what would wait too long afterwards.
func (s *service) admitQueue(x *exchange) error { return s.Ingest.Admit(x.caller) }

// spareConnections are beyond those of clients: who asks after the health of a
// full service, or for its metrics, is still heard.
const spareConnections = 256

type spareKey struct{}

// connected counts a connection. What comes above the bound is told so by the
// answer to its first request; above the spare ones there is no answer.
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

// A body has to come at slowestBody bytes a second, after bodyGrace. Small ones
// have the time that a connection has.
const (
	slowestBody = 128 << 10
	bodyGrace   = 10 * time.Second
	smallBody   = 64 << 10
)

// hurry bounds the time of a large body, or of one whose size is not told.
func (s *service) hurry(r *nethttp.Request) (relax func()) {
	size := r.ContentLength
	if size >= 0 && size <= smallBody {
		return func() {}
	}
	if size < 0 {
		size = s.limits.Body
	}
	x, start := exchangeOf(r.Context()), time.Now()
	if x.to == nil {
		return func() {} // a test of a part
	}
	control := nethttp.NewResponseController(x.to)
	_ = control.SetReadDeadline(start.Add(bodyGrace + time.Duration(size)*time.Second/slowestBody))
	return func() { _ = control.SetReadDeadline(start.Add(readTime)) }
}
