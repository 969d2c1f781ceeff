package consume

import (
	"testing"
)

// A consumer rests in a long backlog that shrinks, and in no other.
func TestOnlyALongBacklogThatShrinksIsPaced(t *testing.T) {
	const bound = 2000
	p := &pace{}
	for n, round := range []struct {
		behind int64
		rests  bool
	}{
		{5_000_000, true}, // the log behind a new projection
		{3_000_000, true},
		{3_000_000, false}, // as much was recorded meanwhile
		{3_100_000, false},
		{400_000, true},
		{20_001, true},
		{20_000, false},
		{0, false},
		{500, false},
		{30_000, false}, // a second of much usage
		{25_000, true},
	} {
		if p.begin(round.behind, bound); p.rests.Load() != round.rests {
			t.Errorf("round %d, %d behind: it rests: %t", n, round.behind, !round.rests)
		}
	}
}
