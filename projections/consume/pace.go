package consume

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/meterplex/meterplex/domain/loop"
)

// pace makes a consumer rest between the transactions of a long backlog, e.g., the whole log behind a new
// projection: at full speed it takes from ingest a core, and a session of the server.
type pace struct {
	before atomic.Int64 // the backlog of the round before
	rests  atomic.Bool  // in this round
}

// pacedFrom is the number of transactions from which a backlog is long.
const pacedFrom = 10

// begin begins a round with a backlog. A backlog that did not shrink in the round before is folded at full speed: a
// consumer that rests must not fall behind for ever.
func (p *pace) begin(behind, bound int64) {
	before := p.before.Swap(behind)
	p.rests.Store(behind > pacedFrom*bound && (before == 0 || behind < before))
}

// longestRest keeps one stall of the machine from causing a long rest.
const longestRest = 250 * time.Millisecond

// rest pauses after a transaction, so that work is the given share of the time, in percent.
func (p *pace) rest(ctx context.Context, took time.Duration, share int64) {
	if share <= 0 || share >= 100 || !p.rests.Load() {
		return
	}
	loop.Sleep(ctx, min(took*time.Duration(100-share)/time.Duration(share), longestRest))
}
