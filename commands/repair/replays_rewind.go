package repair

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Targets of a rewind, besides a time (RFC 3339).
const (
	RewindToStart     = "start"
	rewindToPositions = "positions"
)

// Rewind is a request to move the relay or a consumer back: To one of the constants
// above or a time, or to Positions, the first position in each of their partitions
// that is published or read again.
type Rewind struct {
	Consumer  string // "": the relay
	To        string
	Positions []events.Position
	Reason    string
}

// Rewind moves the relay's cursors back, so that the relay fills the topics again
// from the log, or moves a consumer group back. It never moves forward, because that
// would skip events that were not yet published or read.
func (c *Replays) Rewind(ctx context.Context, req commands.Request, in Rewind) (Replay, error) {
	if refusal := domain.CheckReason(in.Reason); refusal != nil {
		return Replay{}, refusal
	}
	at, refusal := in.check()
	if refusal != nil {
		return Replay{}, refusal
	}
	if in.Consumer != "" {
		return c.rewindConsumer(ctx, req, in, at)
	}
	return c.rewindRelay(ctx, req, in, at)
}

// check validates the target; at is its time, if it is a time.
func (in *Rewind) check() (at time.Time, refusal *domain.Error) {
	if in.Consumer != "" && consumedTopic(in.Consumer) == 0 {
		return at, domain.Refuse("consumer_not_found", "/consumer", "no consumer %.64q reads a topic", in.Consumer)
	}
	if len(in.Positions) > 0 {
		if in.To != "" {
			return at, domain.Refuse("to_invalid", "/to", "a rewind goes to a place or to positions, not to both")
		}
		in.To = rewindToPositions
		return at, checkPositions(in.Positions)
	}
	if in.To == RewindToStart {
		return at, nil
	}
	at, fault := domain.ParseTime(in.To)
	if fault != nil {
		return at, domain.Refuse("to_invalid", "/to", "to is start, or a time such as 2026-05-01T00:00:00Z; else give positions")
	}
	return at, nil
}

func checkPositions(positions []events.Position) *domain.Error {
	var seen [events.Partitions]bool
	for _, p := range positions {
		if p.Number < 1 || seen[p.Partition] {
			return domain.Refuse("positions_invalid", "/positions", "positions begin at 1, and each partition has one at most")
		}
		seen[p.Partition] = true
	}
	return nil
}

// consumedTopic returns the topic that a consumer group reads; 0 for an unknown group.
func consumedTopic(group string) events.Topic {
	for _, t := range events.Topics() {
		if t.Consumer == group {
			return t.Topic
		}
	}
	return 0
}

func (c *Replays) rewindRelay(ctx context.Context, req commands.Request, in Rewind, at time.Time) (Replay, error) {
	r := c.begin(events.ReplayRelay, in.Reason)
	r.Target, r.State, r.EndedAt = in.To, ReplayDone, &r.CreatedAt
	return commands.Change(c.changeOf(ctx, true), req, func(tx ReplayTx) (Replay, error) {
		steps, err := in.relaySteps(tx, at)
		if err != nil {
			return r, err
		}
		r.Units = nil // of an attempt that was rolled back
		for _, s := range steps {
			r.Units = append(r.Units, ReplayUnit{Partition: s.Partition, First: s.To + 1, Cursor: s.To, UpTo: s.From})
		}
		r.Remaining = remaining(r.Units)
		if err := tx.RewindRelay(steps); err != nil {
			return r, err
		}
		if err := tx.StartReplay(r); err != nil {
			return r, err
		}
		said := events.Rewind{ReplayID: r.ID, Kind: r.Kind, Steps: steps, Reason: r.Reason}
		_, err = commands.AppendEvent(tx, &req, r.ID, r.CreatedAt, events.Platform, events.Rewound, said)
		return r, err
	})
}

// relaySteps returns the range of each partition in which the relay moves back.
func (in *Rewind) relaySteps(tx ReplayTx, at time.Time) ([]events.ReplayStep, error) {
	cursors, err := tx.RelayCursors()
	if err != nil {
		return nil, err
	}
	to := [events.Partitions]int64{}
	if in.To == rewindToPositions {
		for p := range cursors {
			to[p] = cursors[p].Position
		}
		for _, p := range in.Positions {
			if p.Number-1 > cursors[p.Partition].Position {
				return nil, domain.Refuse("rewind_forward", "/positions",
					"%s is ahead of the relay, which is at %d: the records between would not be published", p,
					cursors[p.Partition].Position)
			}
			to[p.Partition] = p.Number - 1
		}
	} else if to, err = tx.Before(at); err != nil { // the start is before all times
		return nil, err
	}
	steps := []events.ReplayStep{}
	for p, c := range cursors {
		if to[p] < c.Position {
			steps = append(steps, events.ReplayStep{Partition: int16(p), From: c.Position, To: to[p]})
		}
	}
	return steps, nil
}

// rewindConsumer lets a consumer read again. One of the log reads on from its checkpoint, whatever its topic holds: no position moves.
// A rewind of the consumer of usage.commands is requested from its instances: they leave their group, move its offsets, which is
// impossible while it has members, and rejoin.
func (c *Replays) rewindConsumer(ctx context.Context, req commands.Request, in Rewind, at time.Time) (Replay, error) {
	topic, r := consumedTopic(in.Consumer), c.begin(events.ReplayConsumer, in.Reason)
	r.Consumer, r.Topic, r.Target = in.Consumer, topic.Name(), in.To
	subject, said := events.ReplayRequested, any(events.Replay{Kind: r.Kind, Consumer: r.Consumer, To: r.Target, Reason: r.Reason})
	if topic.Outside() {
		r.Units = in.messageUnits(at)
	} else {
		r.State, r.EndedAt = ReplayDone, &r.CreatedAt
		subject, said = events.Rewound, events.Rewind{ReplayID: r.ID, Kind: r.Kind, Consumer: r.Consumer, Steps: []events.ReplayStep{},
			Reason: r.Reason}
	}
	return commands.Change(c.changeOf(ctx, false), req, func(tx ReplayTx) (Replay, error) {
		for _, p := range in.Positions {
			if topic.Outside() {
				return r, domain.Refuse("positions_invalid", "/positions",
					"the topic of %s has no positions of the log; give a time, or start", in.Consumer)
			}
			if ok, err := tx.Recorded(p); err != nil || !ok {
				return r, commands.OrRefuse(err, "positions_invalid", "/positions", p.String()+" is not in the log")
			}
		}
		if err := tx.StartReplay(r); err != nil {
			return r, err
		}
		_, err := commands.AppendEvent(tx, &req, r.ID, r.CreatedAt, events.Platform, subject, said)
		return r, err
	})
}

// messageUnits returns the time from which each partition of usage.commands is read again.
func (in *Rewind) messageUnits(at time.Time) []ReplayUnit {
	first := int64(StartOfTopic)
	if in.To != RewindToStart {
		first = max(at.UnixMilli(), 0)
	}
	units := make([]ReplayUnit, events.Partitions)
	for p := range units {
		units[p] = ReplayUnit{Partition: int16(p), First: first}
	}
	return units
}

// EndRewind records that a consumer was rewound, or that the rewind failed. It does
// no event if another instance has recorded the end.
func (c *Replays) EndRewind(ctx context.Context, r Replay, steps []events.ReplayStep, failure string) error {
	if failure != "" {
		return c.end(ctx, r.ID, ReplayFailed, failure, nil, events.ReplayDone, r.ended(failure))
	}
	units := slices.Clone(r.Units)
	for i := range units {
		for _, s := range steps {
			if s.Partition == units[i].Partition {
				units[i].Cursor, units[i].UpTo = s.To, s.From
			}
		}
	}
	if steps == nil {
		steps = []events.ReplayStep{}
	}
	return c.end(ctx, r.ID, ReplayDone, "", units, events.Rewound, events.Rewind{ReplayID: r.ID, Kind: r.Kind, Consumer: r.Consumer,
		Steps: steps, Reason: r.Reason})
}

// relayRequest is the origin of the events that end a replay.
func relayRequest() commands.Request {
	return commands.Request{By: commands.Caller{TenantID: events.Platform, Actor: events.Actor{Type: "service", ID: "meterplex-relay"}}}
}

func (c *Replays) end(ctx context.Context, id uuid.UUID, state, failure string, units []ReplayUnit, subject events.Subject,
	said any) error {
	req := relayRequest()
	_, err := commands.Change(c.changeOf(ctx, false), req, func(tx ReplayTx) (Replay, error) {
		return Replay{}, c.endIn(tx, &req, id, state, failure, units, subject, said)
	})
	return err
}

func (c *Replays) endIn(tx ReplayTx, req *commands.Request, id uuid.UUID, state, failure string, units []ReplayUnit, subject events.Subject,
	said any) error {
	now := c.now()
	if ended, err := tx.EndReplay(id, state, failure, now, units); err != nil || !ended {
		return err
	}
	_, err := commands.AppendEvent(tx, req, c.NewID(), now, events.Platform, subject, said)
	return err
}

// ended returns the event of the end of a replay.
func (r *Replay) ended(failure string) events.ReplayEnd {
	end := events.ReplayEnd{ReplayID: r.ID, Topic: r.Topic, Failure: failure}
	for _, u := range r.Units {
		end.Records += u.Records
	}
	return end
}
