package admission

// Bytes that requests in flight hold. Ingest has its own, so that reads of large pages leave it its bodies.
const (
	maxIngestMemory = 64 << 20
	maxOtherMemory  = 128 << 20
)

// requestCost is a generous estimate of a request's memory beside its body and its answer. It bounds the requests that
// wait for a body, or for a client that does not read.
const requestCost = 32 << 10

// Charge is the memory that one request holds.
type Charge struct {
	of   *Bound
	own  *Counter // nil for operators
	held int64
}

// OpenCharge starts the charge of a request. It reports whether there is memory for the request itself.
func OpenCharge(of *Bound, own *Counter) (c Charge, ok bool) {
	c = Charge{of: of, own: own}
	return c, c.Acquire(requestCost)
}

// Acquire takes n more bytes if they are free.
func (c *Charge) Acquire(n int64) bool {
	if c.of == nil {
		return true // no bound: a unit test
	}
	if !c.of.Acquire(n, c.own) {
		return false
	}
	c.held += n
	return true
}

// Take takes n more bytes, free or not.
func (c *Charge) Take(n int64) { c.Release(-n) }

// Held returns the bytes that are held.
func (c *Charge) Held() int64 { return c.held }

// Fits reports whether Acquire(n) would succeed, without acquiring memory.
func (c *Charge) Fits(n int64) bool { return c.of == nil || c.of.Fits(n, c.own) }

// Release returns n bytes.
func (c *Charge) Release(n int64) {
	if c.of != nil {
		c.held -= n
		c.of.Release(n, c.own)
	}
}

// Close releases the whole charge.
func (c *Charge) Close() { c.Release(c.held) }
