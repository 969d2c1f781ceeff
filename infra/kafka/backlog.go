package kafka

import "github.com/twmb/franz-go/pkg/kgo"

// taken is the share of one partition in a batch.
type taken struct {
	partition  int32
	generation uint64
	records    []*kgo.Record
}

// backlog holds what was fetched and not yet delivered: at most the records of
// one poll and what a partition's bound left over from the one before.
type backlog struct {
	max, maxPerPartition int

	size  int
	queue []taken // by arrival; a partition stands in it once
}

func newBacklog(limit, limitPerPartition int) *backlog {
	return &backlog{max: limit, maxPerPartition: limitPerPartition}
}

func (b *backlog) empty() bool { return b.size == 0 }

// add appends a partition's records behind those that wait already.
func (b *backlog) add(partition int32, generation uint64, records []*kgo.Record) {
	if len(records) == 0 {
		return
	}
	b.size += len(records)
	for i := range b.queue {
		if b.queue[i].partition == partition && b.queue[i].generation == generation {
			b.queue[i].records = append(b.queue[i].records, records...)
			return
		}
	}
	b.queue = append(b.queue, taken{partition, generation, records})
}

// drop forgets the partitions that are no longer ours.
func (b *backlog) drop(owned *assignment) {
	b.queue = owned.still(b.queue)
	b.size = 0
	for _, t := range b.queue {
		b.size += len(t.records)
	}
}

// take makes the next batch. A partition that was cut goes to the end of the
// queue, so that no partition waits for another's burst.
func (b *backlog) take() []taken {
	var batch, cut []taken
	room := b.max
	for len(b.queue) > 0 && room > 0 {
		t := b.queue[0]
		b.queue = b.queue[1:]
		n := min(len(t.records), b.maxPerPartition, room)
		batch = append(batch, taken{t.partition, t.generation, t.records[:n:n]})
		if n < len(t.records) {
			cut = append(cut, taken{t.partition, t.generation, t.records[n:]})
		}
		room -= n
		b.size -= n
	}
	b.queue = append(b.queue, cut...)
	return batch
}
