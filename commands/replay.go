package commands

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// States of a replay.
const (
	ReplayRunning = "RUNNING"
	ReplayDone    = "DONE"
	ReplayFailed  = "FAILED"
)

// Replay is something that is published, or read, again on purpose. Nothing is
// counted twice for it: what it publishes is marked, or known by its position.
type Replay struct {
	ID        uuid.UUID
	Kind      string // events.ReplayRange, ReplayRelay or ReplayConsumer
	Topic     string
	TenantID  *uuid.UUID // only this one's events
	Consumer  string
	Target    string // where a rewind goes
	Reason    string
	State     string
	Failure   string
	CreatedAt time.Time
	EndedAt   *time.Time
	Remaining int64 // positions that are still to be published, also by a relay that went back
	Units     []ReplayUnit
}

// ReplayUnit is a replay's part in one partition. Of a range, and of the relay that
// goes back, the numbers are positions of the log. Of a consumer First is the time,
// in milliseconds since 1970, from which on it reads again (StartOfTopic: all), and
// when it has gone back UpTo and Cursor are the pipe's offsets before and after.
type ReplayUnit struct {
	Partition int16
	First     int64
	Cursor    int64 // done up to here
	UpTo      int64
	Records   int64
}

// StartOfTopic is the time from which on a topic is read that is read from its start.
const StartOfTopic = -1

// RelayCursor is where the relay stands in a partition.
type RelayCursor struct {
	Partition int16
	Position  int64
	Needed    int64 // what a consumer of ours still needs of the pipe lies behind it
}

// ReplayStore runs changes of replays.
type ReplayStore interface {
	// ChangeReplays runs decide in one transaction that holds the relay's cursors,
	// where it is to move them, and the head of the platform's partition.
	ChangeReplays(ctx context.Context, cursors bool, decide func(ReplayTx) error) error
	Replay(ctx context.Context, id uuid.UUID) (*Replay, error)
	// Replays lists them, the newest first.
	Replays(ctx context.Context, p Page) ([]Replay, error)
}

// ReplayTx is what a change of replays can load and keep besides.
type ReplayTx interface {
	Tx
	RelayCursors() ([]RelayCursor, error)
	// Before gives, for each partition, the last position recorded before a time.
	Before(at time.Time) ([events.Partitions]int64, error)
	// RecordedAt tells when a position was recorded; ok is false where it is not in the log.
	RecordedAt(p events.Position) (at time.Time, ok bool, err error)
	StartReplay(r Replay) error
	// RewindRelay moves cursors back; whoever holds their leases finds them gone.
	RewindRelay(steps []events.ReplayStep) error
	// EndReplay ends a replay that is running, with the units' last figures; false
	// where it is not running any more.
	EndReplay(id uuid.UUID, state, failure string, at time.Time, units []ReplayUnit) (bool, error)
	// PublishedRanges are the running ranges of which all is published.
	PublishedRanges() ([]Replay, error)
}

// Replays starts replays and says what became of them.
type Replays struct {
	Store ReplayStore
	Now   Clock
	NewID func() uuid.UUID
}

func (c *Replays) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

// change is change with the transaction that replays need.
func (c *Replays) change(ctx context.Context, by Caller, once Once, cursors bool, decide func(ReplayTx) (Replay, error)) (Replay, error) {
	return changeOne(ctx, replayStore{c.Store, cursors}, events.Platform, by, once, func(tx Tx) (Replay, error) {
		wide, ok := tx.(ReplayTx)
		if !ok {
			return Replay{}, fmt.Errorf("a %T cannot change replays", tx)
		}
		return decide(wide)
	})
}

// replayStore lets a change of replays be repeated as any other is.
type replayStore struct {
	ReplayStore
	cursors bool
}

func (s replayStore) Change(ctx context.Context, _ uuid.UUID, decide func(Tx) error) error {
	return s.ChangeReplays(ctx, s.cursors, func(tx ReplayTx) error { return decide(tx) })
}

// begin makes a replay of a request.
func (c *Replays) begin(kind, reason string) Replay {
	return Replay{ID: c.NewID(), Kind: kind, Reason: reason, State: ReplayRunning, CreatedAt: c.now()}
}

// ReplayRange asks for events to be published again: positions From to To, which
// are of one partition, or what was recorded from FromTime on and before ToTime.
type ReplayRange struct {
	Topic            string
	From, To         *events.Position
	TenantID         uuid.UUID // Nil: all
	FromTime, ToTime time.Time // zero: not given
	Reason           string
}

// Range publishes a range of the log again, for readers outside. Each record is
// marked, so that our consumers pass it; apart from the mark it is what it was. What
// the relay has not published yet is left to the relay.
func (c *Replays) Range(ctx context.Context, by Caller, once Once, in ReplayRange) (Replay, error) {
	if refusal := in.check(); refusal != nil {
		return Replay{}, refusal
	}
	r := c.begin(events.ReplayRange, in.Reason)
	r.Topic = in.Topic
	if in.TenantID != uuid.Nil {
		r.TenantID = &in.TenantID
	}
	return c.change(ctx, by, once, false, func(tx ReplayTx) (Replay, error) {
		if r.TenantID != nil {
			if t, err := tx.Tenant(in.TenantID); err != nil || t == nil {
				return r, orRefuse(err, "tenant_not_found", "/tenantId", "no such tenant")
			}
		}
		var err error
		if r.Units, err = in.units(tx); err != nil {
			return r, err
		}
		r.Remaining = remaining(r.Units)
		if err := tx.StartReplay(r); err != nil {
			return r, err
		}
		said := events.Replay{Kind: r.Kind, Topic: r.Topic, TenantID: r.TenantID, Reason: r.Reason}
		for _, u := range r.Units {
			said.Stretches = append(said.Stretches, events.ReplayStep{Partition: u.Partition, From: u.First, To: u.UpTo})
		}
		_, err = appendAs(tx, r.ID, r.CreatedAt, by.actor(), by, once, events.Platform, events.ReplayRequested, said)
		return r, err
	})
}

func (in *ReplayRange) check() *domain.Error {
	topic, known := events.TopicOf(in.Topic)
	switch {
	case !known || topic.Outside():
		return refuse("topic_invalid", "/topic", "there is no topic %.64q that the log is published to", in.Topic)
	case (in.From == nil) != (in.To == nil):
		return refuse("range_invalid", "/from", "from and to go together")
	case in.From == nil && in.FromTime.IsZero():
		return refuse("range_invalid", "/from", "say which range: from and to, or fromTime and toTime")
	case in.From != nil && (!in.FromTime.IsZero() || !in.ToTime.IsZero()):
		return refuse("range_invalid", "/fromTime", "a range is of positions or of times, not of both")
	case in.From != nil && (in.From.Partition != in.To.Partition || in.From.Number < 1 || in.To.Number < in.From.Number):
		return refuse("range_invalid", "/to", "from and to are of one partition, and to is not before from")
	case in.From == nil && !in.ToTime.IsZero() && !in.ToTime.After(in.FromTime):
		return refuse("range_invalid", "/toTime", "toTime is after fromTime")
	case in.From != nil && in.TenantID != uuid.Nil && events.PartitionOf(in.TenantID) != in.From.Partition:
		return refuse("range_invalid", "/tenantId", "the tenant lives in partition %d", events.PartitionOf(in.TenantID))
	}
	return reasonRefusal(in.Reason)
}

func reasonRefusal(reason string) *domain.Error {
	if refusal, ok := checkReason(reason).(*domain.Error); ok {
		return refusal
	}
	return nil
}

func remaining(units []ReplayUnit) (positions int64) {
	for _, u := range units {
		positions += u.UpTo - u.Cursor
	}
	return positions
}

// units are the stretches of the range that are published.
func (in *ReplayRange) units(tx ReplayTx) ([]ReplayUnit, error) {
	cursors, err := tx.RelayCursors()
	if err != nil {
		return nil, err
	}
	if in.From != nil {
		published := cursors[in.From.Partition].Position
		if in.From.Number > published {
			return nil, refuse("range_invalid", "/from", "%s is not published yet: the relay stands at %d", in.From, published)
		}
		return []ReplayUnit{{Partition: in.From.Partition, First: in.From.Number, Cursor: in.From.Number - 1, UpTo: min(in.To.Number, published)}}, nil
	}
	after, err := tx.Before(in.FromTime)
	if err != nil {
		return nil, err
	}
	upTo := [events.Partitions]int64{}
	for i := range cursors {
		upTo[i] = cursors[i].Position
	}
	if !in.ToTime.IsZero() {
		if upTo, err = tx.Before(in.ToTime); err != nil {
			return nil, err
		}
	}
	var units []ReplayUnit
	for p, last := range upTo {
		last = min(last, cursors[p].Position)
		if last <= after[p] || in.TenantID != uuid.Nil && events.PartitionOf(in.TenantID) != int16(p) {
			continue
		}
		units = append(units, ReplayUnit{Partition: int16(p), First: after[p] + 1, Cursor: after[p], UpTo: last})
	}
	return units, nil
}
