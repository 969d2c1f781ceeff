package admission

import (
	"sync/atomic"
	"time"
)

// bodyTime is how long a request waits for a small body: such bodies come with their header, or a round trip later.
const bodyTime = 5 * time.Second

// Counter is a semaphore that never waits. If it is full, the request is refused at once:
// a queue in front of a full service only delays answers.
type Counter struct{ n atomic.Int64 }

// Enter acquires one unit if fewer than bound are in use.
func (c *Counter) Enter(bound int64) bool {
	if c.n.Add(1) > bound {
		c.n.Add(-1)
		return false
	}
	return true
}

// Leave returns one unit.
func (c *Counter) Leave() { c.n.Add(-1) }

// Add acquires one unit without a bound, and returns the number in use.
func (c *Counter) Add() int64 { return c.n.Add(1) }

// Load returns the number of units in use.
func (c *Counter) Load() int64 { return c.n.Load() }
