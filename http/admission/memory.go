package admission

// maxMemory bounds the bytes that requests in flight hold.
const maxMemory = 64 << 20

// requestCost is a generous estimate of a request's memory beside its body. It limits a
// tenant to half of the requests in flight, however small and slow its bodies are.
const requestCost = 32 << 10

// Charge is the memory that one request holds, counted against the global bound and its
// tenant's share. The share keeps one slow tenant with large bodies from excluding the
// others.
type Charge struct {
	all, share           *Counter // share is nil for operators
	allBound, shareBound int64
	held                 int64
}

// OpenCharge starts the charge of a request against all memory, and its tenant's share of
// half the bound. It reports whether there is memory for the request itself.
func OpenCharge(all *Counter, bound int64, share *Counter) (c Charge, ok bool) {
	c = Charge{all: all, allBound: bound, share: share, shareBound: bound / 2}
	return c, c.Acquire(requestCost)
}

// Acquire takes n more bytes if they are available.
func (c *Charge) Acquire(n int64) bool {
	if c.all == nil {
		return true // no bound: a unit test
	}
	if !c.all.Acquire(n, c.allBound) {
		return false
	}
	if c.share != nil && !c.share.Acquire(n, c.shareBound) {
		c.all.n.Add(-n)
		return false
	}
	c.held += n
	return true
}

// Fits reports whether Acquire(n) would succeed, without acquiring memory.
func (c *Charge) Fits(n int64) bool {
	return c.all == nil || c.all.n.Load()+n <= c.allBound && (c.share == nil || c.share.n.Load()+n <= c.shareBound)
}

// Release returns n bytes.
func (c *Charge) Release(n int64) {
	c.held -= n
	if c.all != nil {
		c.all.n.Add(-n)
	}
	if c.share != nil {
		c.share.n.Add(-n)
	}
}

// Close releases the whole charge.
func (c *Charge) Close() { c.Release(c.held) }
