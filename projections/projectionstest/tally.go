package projectionstest

import (
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/projections"
)

// ledger is the client's own account of its sent events: the model for the
// aggregates. It shares no code with the folds.
type ledger struct {
	amounts map[AggregateKey]*big.Int
	counts  map[AggregateKey]int64
	lasts   map[AggregateKey]time.Time
}

func NewLedger() *ledger {
	return &ledger{map[AggregateKey]*big.Int{}, map[AggregateKey]int64{}, map[AggregateKey]time.Time{}}
}

func (l *ledger) Add(tenant uuid.UUID, feature string, amount int64, at time.Time) {
	k := AggregateKey{tenant, feature, fmt.Sprintf("%d-%02d", at.Year(), int(at.Month()))}
	if l.amounts[k] == nil {
		l.amounts[k] = new(big.Int)
	}
	l.amounts[k].Add(l.amounts[k], big.NewInt(amount))
	l.counts[k]++
	if at.After(l.lasts[k]) {
		l.lasts[k] = at
	}
}

func (l *ledger) Check(t interface {
	Helper()
	Fatalf(string, ...any)
}, got map[AggregateKey]Aggregate) {
	t.Helper()
	if len(got) != len(l.amounts) {
		t.Fatalf("%d aggregates, want %d", len(got), len(l.amounts))
	}
	for k, amount := range l.amounts {
		want := Aggregate{amount.String(), l.counts[k], l.counts[k], l.lasts[k]}
		if got[k] != want {
			t.Fatalf("%v: got %+v, want %+v", k, got[k], want)
		}
	}
}

// Tally sums up the batches of an observer.
type Tally struct {
	mu                                                     sync.Mutex
	Applied, Failed, Passed, FollowUps                     int
	Duplicates, Ghosts, OtherLog, Foreign, FromLog, Errors int
	Transactions                                           int
}

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
	t.Ghosts += b.Ghosts
	t.OtherLog += b.OtherLog
	t.Foreign += b.Foreign
	t.FromLog += b.FromLog
}
