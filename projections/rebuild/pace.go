package rebuild

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/projections/consume"
)

// pace makes a rebuild's worker rest: one that folds as fast as it can takes a core,
// and the server's session another, and on a small machine every read waits for both.
// What counts is that it works in short turns. So the log is read in pieces, since
// the server runs ahead of whoever reads a long answer slowly, and after each piece
// both are idle for as long as the share says.
type Pace struct {
	share int64 // percent of the time; 0 and 100: no rests
	began time.Time
}

// restPiece is how many positions are folded between two rests: a millisecond or two.
const restPiece = 4096

func (p *Pace) rests() bool { return p.share > 0 && p.share < 100 }

// piece ends the piece of a stretch that begins after a position.
func (p *Pace) Piece(after, upTo int64) int64 {
	if !p.rests() {
		return upTo
	}
	return min(upTo, after+restPiece)
}

func (p *Pace) Work() { p.began = time.Now() }

// rest lasts in proportion to what was worked: on a busy machine, where a piece takes
// longer, it is longer, too.
func (p *Pace) Rest(ctx context.Context) {
	if p.rests() {
		consume.Idle(ctx, min(time.Since(p.began)*time.Duration(100-p.share)/time.Duration(p.share), longestRest))
	}
}

// longestRest keeps a pause of the machine from becoming many.
const longestRest = 250 * time.Millisecond
