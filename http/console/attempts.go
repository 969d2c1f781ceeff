package console

import (
	"sync"
	"time"
)

// attemptTime is the time after which refused attempts may be repeated.
const attemptTime = time.Minute

// maxNames bounds the names whose attempts are counted: addresses cost a client of IPv6 little.
const maxNames = 10_000

// attempts bounds how often one name may attempt something in attemptTime. It is in memory: each instance counts its own.
type attempts struct {
	most int

	mu    sync.Mutex
	since time.Time
	of    map[string]int
}

// begin counts an attempt, and reports whether it may be made.
func (a *attempts) begin(name string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.count(name, now) >= a.most {
		return false
	}
	a.of[name]++
	return true
}

// full reports whether begin would refuse an attempt.
func (a *attempts) full(name string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count(name, now) >= a.most
}

func (a *attempts) count(name string, now time.Time) int {
	if age := now.Sub(a.since); age >= attemptTime || age < 0 || len(a.of) >= maxNames {
		a.since, a.of = now, map[string]int{}
	}
	return a.of[name]
}
