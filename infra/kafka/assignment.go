package kafka

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// assignment holds the partitions assigned to this member. Each assignment has its own generation, so
// that a batch read before a partition was revoked differs from one read after it was assigned again.
// Offsets are marked under its lock: after revoked has run, no offset of a revoked partition is marked.
type assignment struct {
	topic string

	mu      sync.Mutex
	last    uint64
	current map[int32]uint64
}

func newAssignment(topic string) *assignment {
	return &assignment{topic: topic, current: map[int32]uint64{}}
}

func (a *assignment) assigned(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range partitions[a.topic] {
		a.last++
		a.current[p] = a.last
	}
}

// revoked commits the acknowledged offsets before the partitions are reassigned.
func (a *assignment) revoked(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	a.lost(ctx, client, partitions)
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	// Records whose offsets are not committed are delivered again to the next owner.
	_ = client.CommitMarkedOffsets(ctx)
}

func (a *assignment) lost(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range partitions[a.topic] {
		delete(a.current, p)
	}
}

// generation returns 0 for a partition that is not assigned.
func (a *assignment) generation(partition int32) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current[partition]
}

// stillOwned returns the shares whose partition is assigned in the same generation as when they were
// read.
func (a *assignment) stillOwned(batch []share) []share {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := batch[:0]
	for _, t := range batch {
		if t.generation != 0 && a.current[t.partition] == t.generation {
			kept = append(kept, t)
		}
	}
	return kept
}

// mark marks the offsets behind the batch for commit, for partitions that are still assigned.
func (a *assignment) mark(client *kgo.Client, batch []share) {
	a.mu.Lock()
	defer a.mu.Unlock()
	offsets := make(map[int32]kgo.EpochOffset, len(batch))
	for _, t := range batch {
		if t.generation != 0 && a.current[t.partition] == t.generation {
			last := t.records[len(t.records)-1]
			offsets[t.partition] = kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1}
		}
	}
	if len(offsets) > 0 {
		client.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{a.topic: offsets})
	}
}
