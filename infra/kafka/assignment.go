package kafka

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// assignment knows which partitions are ours. Each assignment of a partition has
// a number of its own, so that a batch read before a partition was taken away is
// told from one read after it came back. Its lock is held while offsets are
// marked: once revoked has it, nothing of that partition is marked any more.
type assignment struct {
	topic string

	mu   sync.Mutex
	last uint64
	ours map[int32]uint64
}

func newAssignment(topic string) *assignment {
	return &assignment{topic: topic, ours: map[int32]uint64{}}
}

func (a *assignment) assigned(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range partitions[a.topic] {
		a.last++
		a.ours[p] = a.last
	}
}

// revoked commits what was acknowledged before the partitions go elsewhere.
func (a *assignment) revoked(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	a.lost(ctx, client, partitions)
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	// What cannot be committed is delivered again, to the next owner.
	_ = client.CommitMarkedOffsets(ctx)
}

func (a *assignment) lost(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range partitions[a.topic] {
		delete(a.ours, p)
	}
}

// generation is 0 for a partition that is not ours.
func (a *assignment) generation(partition int32) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ours[partition]
}

func (a *assignment) generations() map[int32]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	copied := make(map[int32]uint64, len(a.ours))
	for p, g := range a.ours {
		copied[p] = g
	}
	return copied
}

// still keeps what is ours as it was when it was read.
func (a *assignment) still(batch []taken) []taken {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := batch[:0]
	for _, t := range batch {
		if t.generation != 0 && a.ours[t.partition] == t.generation {
			kept = append(kept, t)
		}
	}
	return kept
}

// mark lets the offsets behind the batch be committed, where it is still ours.
func (a *assignment) mark(client *kgo.Client, batch []taken) {
	a.mu.Lock()
	defer a.mu.Unlock()
	offsets := make(map[int32]kgo.EpochOffset, len(batch))
	for _, t := range batch {
		if t.generation != 0 && a.ours[t.partition] == t.generation {
			last := t.records[len(t.records)-1]
			offsets[t.partition] = kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1}
		}
	}
	if len(offsets) > 0 {
		client.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{a.topic: offsets})
	}
}
