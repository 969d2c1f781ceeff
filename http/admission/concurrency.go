package admission

import (
	"sync/atomic"
	"time"
)

// Requests in flight, by kind, so that reads and changes are answered while ingest is full.
const (
	maxIngests = 2048
	maxOthers  = 1024
)

// bodyTime is how long a request waits for a small body before it takes its place: such bodies
// come with their header, or a round trip later.
const bodyTime = 5 * time.Second

// Counter is a semaphore that never waits. If it is full, the request is refused at once:
// a queue in front of a full service only delays answers.
type Counter struct{ n atomic.Int64 }

// Enter acquires one unit if fewer than bound are in use.
func (c *Counter) Enter(bound int64) bool { return c.Acquire(1, bound) }

// Leave returns one unit.
func (c *Counter) Leave() { c.n.Add(-1) }

// Add acquires one unit without a bound, and returns the number in use.
func (c *Counter) Add() int64 { return c.n.Add(1) }

// Load returns the number of units in use.
func (c *Counter) Load() int64 { return c.n.Load() }

// Acquire acquires n units at once, if no more than bound are in use then.
func (c *Counter) Acquire(n, bound int64) bool {
	if c.n.Add(n) > bound {
		c.n.Add(-n)
		return false
	}
	return true
}
