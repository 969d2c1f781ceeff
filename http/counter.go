package http

import "sync/atomic"

// counter is a semaphore that never waits. If it is full, the request is refused at once:
// a queue in front of a full service only delays answers.
type counter struct{ n atomic.Int64 }

func (c *counter) enter(bound int64) bool { return c.acquire(1, bound) }

func (c *counter) leave() { c.n.Add(-1) }

// add takes one unit without a bound, and returns how many are taken.
func (c *counter) add() int64 { return c.n.Add(1) }

func (c *counter) load() int64 { return c.n.Load() }

// acquire takes n units at once.
func (c *counter) acquire(n, bound int64) bool {
	if c.n.Add(n) > bound {
		c.n.Add(-n)
		return false
	}
	return true
}
