package projectionstest

import (
	"sync"

	"github.com/meterplex/meterplex/projections"
)

// Tally sums up the batches of an observer.
type Tally struct {
	mu                                             sync.Mutex
	Applied, Failed, Passed, FollowUps             int
	Duplicates, OtherLog, Foreign, FromLog, Errors int
	Transactions                                   int
}

// Observe implements projections.Observer.
func (t *Tally) Observe(_ *projections.Consumer, b projections.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Transactions++
	if b.Err != nil {
		t.Errors++
	}
	t.Applied += len(b.Applied)
	t.Failed += len(b.Failed)
	t.Passed += b.Passed
	t.FollowUps += b.FollowUps
	t.Duplicates += b.Duplicates
	t.OtherLog += b.OtherLog
	t.Foreign += b.Foreign
	t.FromLog += b.FromLog
}
