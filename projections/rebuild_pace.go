package projections

import (
	"context"
	"time"
)

// pace makes a rebuild's worker rest: one that folds as fast as it can takes a core,
// and the server's session another, and on a small machine every read waits for both.
// What counts is that it works in short turns. So the log is read in pieces, since
// the server runs ahead of whoever reads a long answer slowly, and after each piece
// both are idle for as long as the share says.
type pace struct {
	share int64 // percent of the time; 0 and 100: no rests
	began time.Time
}

// restPiece is how many positions are folded between two rests: a millisecond or two.
const restPiece = 4096

func (p *pace) rests() bool { return p.share > 0 && p.share < 100 }

// piece ends the piece of a stretch that begins after a position.
func (p *pace) piece(after, upTo int64) int64 {
	if !p.rests() {
		return upTo
	}
	return min(upTo, after+restPiece)
}

func (p *pace) work() { p.began = time.Now() }

// rest lasts in proportion to what was worked: on a busy machine, where a piece takes
// longer, it is longer, too.
func (p *pace) rest(ctx context.Context) {
	if p.rests() {
		idle(ctx, min(time.Since(p.began)*time.Duration(100-p.share)/time.Duration(p.share), longestRest))
	}
}

// longestRest keeps a pause of the machine from becoming many.
const longestRest = 250 * time.Millisecond
