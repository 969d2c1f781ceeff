package projectionstest

import (
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"
)

// Ledger is the client's own account of its sent events: the model for the
// aggregates. It shares no code with the folds.
type Ledger struct {
	amounts map[AggregateKey]*big.Int
	counts  map[AggregateKey]int64
	lasts   map[AggregateKey]time.Time
}

// NewLedger returns an empty account.
func NewLedger() *Ledger {
	return &Ledger{map[AggregateKey]*big.Int{}, map[AggregateKey]int64{}, map[AggregateKey]time.Time{}}
}

// Add adds sent usage.
func (l *Ledger) Add(tenant uuid.UUID, feature string, amount int64, at time.Time) {
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

// Check compares the account with the figures.
func (l *Ledger) Check(t interface {
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
