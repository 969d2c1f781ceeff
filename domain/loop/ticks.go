package loop

import "time"

// Ticks are moments that the loops of an instance share: the multiples of each interval since they began. A look at the database costs an
// idle process more for waking up than for the look, so that looks at once cost much less than one after the other. The zero value shares
// no moment: each loop waits for its interval.
type Ticks struct{ began time.Time }

// BeginTicks returns moments that are counted from now on. Those of instances that began at different times differ, so that instances do
// not look at the same moments.
func BeginTicks() Ticks { return Ticks{time.Now()} }

// Until returns how long a loop that looks at each interval waits now: until the next shared moment, but at least for half of the interval,
// and never for longer than it.
func (s Ticks) Until(every time.Duration) time.Duration {
	if s.began.IsZero() {
		return every
	}
	return until(time.Since(s.began), every)
}

// until waits for three quarters of the interval if the next moment is too near: the waits after that, of a loop whose looks are short, end
// at a shared moment.
func until(since, every time.Duration) time.Duration {
	left := every - since%every
	if left < every/2 {
		return every * 3 / 4
	}
	return left
}
