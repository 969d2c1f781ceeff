package overview

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Board holds the state of the database as it was last read. Its methods may run concurrently.
type Board struct {
	viewers atomic.Int64
	mu      sync.Mutex
	state   Installation
	found   map[Kind][]Attention
}

// Watched reports whether someone views the state: then it is worth a read each second.
func (b *Board) Watched() bool { return b.viewers.Load() > 0 }

// SetOutbox replaces the state of the outbox, read at a time.
func (b *Board) SetOutbox(v Backlog, at time.Time) {
	var stalled []Attention
	if age := time.Duration(v.OldestSeconds * float64(time.Second)); age > outboxStalledAfter {
		since := at.Add(-age)
		stalled = Item(OutboxStalled, "", v.Unpublished, &since, "/api/v1/outbox")
	}
	b.change(func() { b.state.Outbox, b.found[OutboxStalled] = v, stalled })
}

// SetConsumers replaces the lags of the consumers.
func (b *Board) SetConsumers(list []Consumer) { b.change(func() { b.state.Consumers = list }) }

// SetIdentity replaces the result of the last comparison.
func (b *Board) SetIdentity(v Comparison) {
	v.ComparedAt = v.ComparedAt.UTC()
	var broken []Attention
	if !v.Holds {
		broken = Item(IdentityBroken, "", max(1, v.Missing, -v.Missing), &v.ComparedAt, "/api/v1/system/identity")
	}
	b.change(func() { b.state.Identity, b.found[IdentityBroken] = &v, broken })
}

// SetAttention replaces the items of a kind.
func (b *Board) SetAttention(kind Kind, list []Attention) { b.change(func() { b.found[kind] = list }) }

// SetRead sets the time of the last complete read.
func (b *Board) SetRead(at time.Time) { b.change(func() { b.state.ReadAt = utc(&at) }) }

func (b *Board) change(set func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.found == nil {
		b.found = map[Kind][]Attention{}
	}
	set()
}

// read returns the state as of a time.
func (b *Board) read(now time.Time) (Installation, []Attention) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state
	if s.Consumers = slices.Clone(s.Consumers); s.Consumers == nil {
		s.Consumers = []Consumer{}
	}
	if s.Identity != nil {
		identity := *s.Identity
		identity.AgeSeconds = max(0, now.Sub(identity.ComparedAt).Seconds())
		s.Identity = &identity
	}
	return s, sorted(b.found)
}
