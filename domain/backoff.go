package domain

import "time"

// Backoff is the wait before failed work is tried again. It doubles with each failure, from First up to Longest.
type Backoff struct{ First, Longest time.Duration }

// After returns the wait after a number of failures.
func (b Backoff) After(failures int) time.Duration {
	wait := b.First
	for n := 1; n < failures && wait < b.Longest; n++ {
		wait *= 2
	}
	return min(wait, b.Longest)
}

// Jittered returns between half of the wait and all of it, so that instances that failed together do not try again together. random draws
// from 0 up to its argument.
func (b Backoff) Jittered(failures int, random func(time.Duration) time.Duration) time.Duration {
	half := b.After(failures) / 2
	return half + random(half)
}
