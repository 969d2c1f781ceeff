package consume

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// Process reads the log up to the positions that records of the consumer's topic name, in any order. The records may hold anything: only
// their positions are read. Nil means that all events up to there are committed and the records may be acknowledged; after an error
// they must be delivered again.
func (r *Runner) Process(ctx context.Context, records []events.Record) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	var seen projections.Batch
	named := r.named(records, &seen)
	var upTo [events.Partitions]int64
	for _, at := range named {
		if p := at.Position; r.Recent == nil || !r.Recent.Passed(at) {
			upTo[p.Partition] = max(upTo[p.Partition], p.Number)
		}
	}
	var ahead []events.Position
	for p, n := range upTo {
		if n > 0 {
			ahead = append(ahead, events.Position{Partition: int16(p), Number: n})
		}
	}
	if _, err := r.read(ctx, ahead); err != nil {
		return err
	}
	seen.Duplicates = r.assignments.delivered(named, time.Now())
	if seen.Passed > 0 || seen.Duplicates > 0 || seen.Foreign > 0 || seen.OtherLog > 0 {
		seen.End = time.Now()
		r.observe(seen)
	}
	return nil
}

// named returns the positions in this log that records name, and counts the other records.
func (r *Runner) named(records []events.Record, seen *projections.Batch) []events.RecordPosition {
	named := make([]events.RecordPosition, 0, len(records))
	for i := range records {
		record := &records[i]
		if record.Header(events.HeaderReplay) != nil {
			seen.Passed++ // published again for outside readers
			continue
		}
		at, err := codec.PositionOf(record)
		switch {
		case err != nil || record.Topic != r.Consumer.Topic:
			seen.Foreign++
			r.logOther(record, "it names no position in the log; meterplex_events_foreign_total counts all")
		case at.Log != r.Log.ID() && at.Log != uuid.Nil:
			seen.OtherLog++
			r.logOther(record, "it is of another log: another database shares the broker under the same topic names; "+
				"meterplex_events_other_log_total counts all")
		default:
			named = append(named, at)
		}
	}
	return named
}

// logOther logs, at most once a second, a record that names no position of this log. The log does not depend on it.
func (r *Runner) logOther(record *events.Record, why string) {
	now := time.Now().Unix()
	if r.othersLogged.Swap(now) != now {
		r.Logger.Warn("skipped a record that is not this log's", "consumer", r.Consumer.Name, "topic", record.Topic.Name(), "partition",
			record.Partition, "offset", record.Offset, "why", why)
	}
}

// assignedFor is how long after a record the pipe is assumed to deliver its partition here. Within it a
// group moves the partitions of a member that died.
const assignedFor = 10 * time.Second

// assignments are the partitions that the pipe delivers to the consumer of this process. It shares them among the instances.
type assignments struct {
	mu  sync.Mutex
	own [events.Partitions]assignment
}

type assignment struct {
	until time.Time // zero: not assigned
	begun bool      // a checkpoint was seen
	piped int64     // the greatest position that the pipe has delivered here; before its first record, the first checkpoint
}

// begin notes the first checkpoint of a partition that this process has seen.
func (s *assignments) begin(partition int16, checkpoint int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := &s.own[partition]; !o.begun {
		o.begun, o.piped = true, max(o.piped, checkpoint)
	}
}

// delivered notes records of the pipe, and returns how many of them it has delivered before.
func (s *assignments) delivered(named []events.RecordPosition, now time.Time) (again int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range named {
		o := &s.own[at.Position.Partition]
		o.until = now.Add(assignedFor)
		if at.Position.Number <= o.piped {
			again++
		}
		o.piped = max(o.piped, at.Position.Number)
	}
	return again
}

// assign assigns partitions in which no instance has moved the checkpoint.
func (s *assignments) assign(partitions []events.Position, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range partitions {
		s.own[p.Partition].until = now.Add(assignedFor)
	}
}

// unassigned returns the other partitions.
func (s *assignments) unassigned(now time.Time) (left []int16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.own {
		if now.After(s.own[p].until) {
			left = append(left, int16(p))
		}
	}
	return left
}
