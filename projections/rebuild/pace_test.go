package rebuild

import (
	"testing"
	"time"
)

// A worker with a share rests in proportion to its work, after pieces that cover the
// whole; a worker without a share folds all at once.
func TestARebuildWorkerIsLimitedToItsShare(t *testing.T) {
	for share, least := range map[int64]time.Duration{0: 0, 100: 0, 50: 20 * time.Millisecond, 25: 60 * time.Millisecond, 1: longestRest} {
		p := Pace{share: share, began: time.Now().Add(-20 * time.Millisecond)}
		began := time.Now()
		p.Rest(t.Context())
		if took := time.Since(began); took < least {
			t.Errorf("%d %%: rested %v after 20 ms, want %v", share, took, least)
		}
		const upTo = 10_000
		pieces := 0
		for after := int64(100); after < upTo; pieces++ {
			if after = p.Piece(after, upTo); after > upTo {
				t.Errorf("%d %%: a piece ends at %d", share, after)
			}
		}
		if want := map[bool]int{true: 3, false: 1}[p.rests()]; pieces != want {
			t.Errorf("%d %%: %d pieces, want %d", share, pieces, want)
		}
	}
}
