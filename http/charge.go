package http

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

// openCharge starts the charge of a request against all memory, and its tenant's share of
// half the bound. It reports whether there is memory for the request itself.
func openCharge(all *counter, bound int64, share *counter) (c charge, ok bool) {
	c = charge{all: all, allBound: bound, share: share, shareBound: bound / 2}
	return c, c.acquire(requestCost)
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
