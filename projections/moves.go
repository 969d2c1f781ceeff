package projections

import (
	"context"
	"sync"
	"time"

	"github.com/meterplex/meterplex/events"
)

// Moves holds the positions that this process has seen consumers reach. It is a hint
// for when to query a position, never a source of data. The zero value is ready.
type Moves struct {
	mu        sync.Mutex
	consumers map[string]*[events.Partitions]mark
}

// mark is a consumer's last seen position in a partition.
type mark struct {
	position int64
	at       time.Time
	moved    chan struct{} // closed at the next move; nil: no waiters
}

// fresh is how long after a move the consumer counts as running in this process.
const fresh = time.Second

func (p *Moves) of(consumer string, partition int16) *mark {
	if p.consumers == nil {
		p.consumers = make(map[string]*[events.Partitions]mark)
	}
	marks := p.consumers[consumer]
	if marks == nil {
		marks = new([events.Partitions]mark)
		p.consumers[consumer] = marks
	}
	return &marks[partition]
}

// Move records the positions that a committed transaction moved a consumer to.
func (p *Moves) Move(consumer string, to []events.Position) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, t := range to {
		m := p.of(consumer, t.Partition)
		m.position, m.at = t.Number, now
		if m.moved != nil {
			close(m.moved)
			m.moved = nil
		}
	}
}

// Wait returns when the consumer was seen to reach a position, or after a timeout:
// poll, or longest if the consumer runs in this process. If Moves has the position
// reached already, Wait trusts the caller's own read and waits anyway.
func (p *Moves) Wait(ctx context.Context, consumer string, partition int16, position int64, poll, longest time.Duration) error {
	_, moved, local := p.find(consumer, partition, position)
	if local {
		poll = longest
	}
	timer := time.NewTimer(poll)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-moved:
		}
		var reached bool
		if reached, moved, _ = p.find(consumer, partition, position); reached {
			return nil
		}
	}
}

func (p *Moves) find(consumer string, partition int16, position int64) (reached bool, moved <-chan struct{}, local bool) {
	if p == nil {
		return false, nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.of(consumer, partition)
	if m.position >= position {
		return true, nil, false
	}
	if m.moved == nil {
		m.moved = make(chan struct{})
	}
	return false, m.moved, time.Since(m.at) < fresh
}
