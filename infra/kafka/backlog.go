package kafka

import "github.com/twmb/franz-go/pkg/kgo"

// share is the part of one partition in a batch.
type share struct {
	partition  int32
	generation uint64
	records    []*kgo.Record
}

// backlog holds fetched records that are not delivered yet: at most the records of one poll, and the rest
// of the previous poll that exceeded a partition's bound.
type backlog struct {
	max, maxPerPartition int

	size  int
	queue []share // by arrival; one entry per assignment of a partition
}

func newBacklog(limit, limitPerPartition int) *backlog {
	return &backlog{max: limit, maxPerPartition: limitPerPartition}
}

func (b *backlog) empty() bool { return b.size == 0 }

// add appends records to those of the same partition.
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
	b.queue = append(b.queue, share{partition, generation, records})
}

// drop removes the partitions that are no longer assigned.
func (b *backlog) drop(owned *assignment) {
	b.queue = owned.stillOwned(b.queue)
	b.size = 0
	for _, t := range b.queue {
		b.size += len(t.records)
	}
}

// next removes and returns the next batch. A partition that was cut moves to the end of the queue, so
// that no partition waits for the burst of another.
func (b *backlog) next() []share {
	var batch, cut []share
	room := b.max
	for len(b.queue) > 0 && room > 0 {
		t := b.queue[0]
		b.queue = b.queue[1:]
		n := min(len(t.records), b.maxPerPartition, room)
		batch = append(batch, share{t.partition, t.generation, t.records[:n:n]})
		if n < len(t.records) {
			cut = append(cut, share{t.partition, t.generation, t.records[n:]})
		}
		room -= n
		b.size -= n
	}
	b.queue = append(b.queue, cut...)
	return batch
}
