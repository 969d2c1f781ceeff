package rebuild

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/domain/loop"
)

// Pace makes a rebuild's worker rest: at full speed it occupies a core and the server's
// session another, and on a small machine every read waits for both. Short turns avoid
// that. So the log is read in pieces, since the server runs ahead of a slow reader of a
// long answer, and after each piece both are idle for as long as the share requires.
type Pace struct {
	share int64 // percent of the time; 0 and 100: no rests
	began time.Time
}

// How many positions are folded at once: between two rests, some milliseconds; and without
// rests, so few that the running totals of a figure are dense.
const (
	restPiece   = 4096
	steadyPiece = 16384
)

func (p *Pace) rests() bool { return p.share > 0 && p.share < 100 }

// Piece returns the end of the piece that begins after a position.
func (p *Pace) Piece(after, upTo int64) int64 {
	if !p.rests() {
		return min(upTo, after+steadyPiece)
	}
	return min(upTo, after+restPiece)
}

func (p *Pace) Work() { p.began = time.Now() }

// Rest pauses in proportion to the work done: on a busy machine, where a piece takes
// longer, the pause is longer, too.
func (p *Pace) Rest(ctx context.Context) {
	if p.rests() {
		loop.Sleep(ctx, min(time.Since(p.began)*time.Duration(100-p.share)/time.Duration(p.share), longestRest))
	}
}

// longestRest keeps one stall of the machine from causing a long rest.
const longestRest = 250 * time.Millisecond
