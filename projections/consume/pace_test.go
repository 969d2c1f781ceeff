package consume

import (
	"testing"
	"time"
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

func TestARestIsInProportionToTheWork(t *testing.T) {
	for share, least := range map[int64]time.Duration{0: 0, 100: 0, 50: 20 * time.Millisecond, 25: 60 * time.Millisecond, 1: longestRest} {
		p := &pace{}
		p.begin(1_000_000, 1)
		began := time.Now()
		p.rest(t.Context(), 20*time.Millisecond, share)
		if took := time.Since(began); took < least {
			t.Errorf("%d %%: rested %v after 20 ms, want %v", share, took, least)
		}
	}
}
