package validate

import (
	"sync"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// remembered are recent targets of corrections: for each partition, as they stand after an event of the validator's topic. The state after
// an event follows from the log alone. So it is true for a batch that continues behind that event in the same epoch, whoever judged the
// events up to it; for any other batch the targets are read. Only usage that counts is kept: a verdict is final, while an event without one may get it by a retry.
type remembered struct {
	mu         sync.Mutex
	partitions [events.Partitions]rememberedPartition
}

type rememberedPartition struct {
	epoch      int32
	at         int64 // the last event that the targets include
	until      int64 // usage is kept up to here: a correction came shortly before
	young, old map[targetKey]domain.Target
}

const (
	// keepUsage is for how many positions after a correction the usage of a partition is kept.
	keepUsage = 20_000
	// maxYoung bounds the targets of a partition: when so many are young, the old ones are forgotten. Both take 1 MB.
	maxYoung = 2048
)

// span is the part of a batch in one partition.
type span struct {
	partition int16
	epoch     int32
	after, at int64
	broken    bool // events are left out between its ends, or it has several epochs
	corrects  bool
}

// spansOf returns the spans of a batch.
func spansOf(batch []events.Envelope) (list []span) {
	var of [events.Partitions]int // index of a partition's span, plus 1
	for i := range batch {
		e := &batch[i]
		p := e.Position.Partition
		if of[p] == 0 {
			list = append(list, span{partition: p, epoch: e.Epoch, after: e.Previous, at: e.Previous})
			of[p] = len(list)
		}
		s := &list[of[p]-1]
		s.broken = s.broken || e.Previous != s.at || e.Epoch != s.epoch
		s.at = e.Position.Number
		s.corrects = s.corrects || e.Subject == events.UsageCorrected || e.Subject == events.UsageRetracted
	}
	return list
}

// continues reports whether the targets of a partition are those before a span.
func (p *rememberedPartition) continues(s *span) bool {
	return !s.broken && p.epoch == s.epoch && p.at == s.after
}

// keeps reports whether usage of one of the spans is kept.
func (r *remembered) keeps(spans []span) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range spans {
		s := &spans[i]
		if p := &r.partitions[s.partition]; s.corrects || p.continues(s) && s.at <= p.until {
			return true
		}
	}
	return false
}

// find returns copies of those of some targets that are known before the spans.
func (r *remembered) find(spans []span, keys []targetKey) map[targetKey]*domain.Target {
	found := make(map[targetKey]*domain.Target, len(keys))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range spans {
		p := &r.partitions[spans[i].partition]
		if !p.continues(&spans[i]) {
			continue
		}
		for _, key := range keys {
			if events.PartitionOf(key.tenant) != spans[i].partition {
				continue
			}
			t, ok := p.young[key]
			if !ok {
				t, ok = p.old[key]
			}
			if ok {
				found[key] = &t
			}
		}
	}
	return found
}

// settle remembers the targets after the spans of a batch that is committed.
func (r *remembered) settle(spans []span, kept map[targetKey]domain.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var open [events.Partitions]bool
	for i := range spans {
		s := &spans[i]
		p := &r.partitions[s.partition]
		if p.epoch == s.epoch && p.at >= s.at {
			continue // a later batch was settled before
		}
		if !p.continues(s) {
			*p = rememberedPartition{epoch: s.epoch}
		}
		if p.at = s.at; s.corrects {
			p.until = s.at + keepUsage
		}
		if open[s.partition] = !s.broken && s.at <= p.until; !open[s.partition] {
			p.young, p.old = nil, nil
		}
	}
	for key, t := range kept {
		partition := events.PartitionOf(key.tenant)
		if !open[partition] {
			continue
		}
		p := &r.partitions[partition]
		if len(p.young) >= maxYoung {
			p.old, p.young = p.young, nil
		}
		if p.young == nil {
			p.young = make(map[targetKey]domain.Target)
		}
		p.young[key] = t
	}
}
