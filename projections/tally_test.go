package projections_test

import (
	"sync"

	"github.com/meterplex/meterplex/projections"
)

// tally sums up the batches of an observer.
type tally struct {
	mu                                                     sync.Mutex
	applied, failed, passed, followUps                     int
	duplicates, ghosts, otherLog, foreign, fromLog, errors int
	transactions                                           int
}

func (t *tally) Observe(_ *projections.Consumer, b projections.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.transactions++
	if b.Err != nil {
		t.errors++
	}
	t.applied += len(b.Applied)
	t.failed += len(b.Failed)
	t.passed += b.Passed
	t.followUps += b.FollowUps
	t.duplicates += b.Duplicates
	t.ghosts += b.Ghosts
	t.otherLog += b.OtherLog
	t.foreign += b.Foreign
	t.fromLog += b.FromLog
}
