package repair

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// States of a replay.
const (
	ReplayRunning = "RUNNING"
	ReplayDone    = "DONE"
	ReplayFailed  = "FAILED"
)

// Replay is a deliberate repetition of publishing or reading. It causes no double
// count: repeated records have a mark, or their position is already known.
type Replay struct {
	ID        uuid.UUID
	Kind      string // events.ReplayRange, ReplayRelay or ReplayConsumer
	Topic     string
	TenantID  *uuid.UUID // limits it to this tenant
	Consumer  string
	Target    string // target of a rewind
	Reason    string
	State     string
	Failure   string
	CreatedAt time.Time
	EndedAt   *time.Time
	Remaining int64 // positions still to publish, also by a rewound relay
	Units     []ReplayUnit
}

// ReplayUnit is a replay's work in one partition. For a range and a rewind of the
// relay, the numbers are positions of the log. For usage.commands, First is the time, in
// milliseconds since 1970, from which it reads again (StartOfTopic: all). After its
// rewind, UpTo and Cursor are the broker's offsets before and after.
type ReplayUnit struct {
	Partition int16
	First     int64
	Cursor    int64 // all up to here is done
	UpTo      int64
	Records   int64
}

// StartOfTopic stands for the time of the first record of a topic.
const StartOfTopic = -1

// RelayCursor is the relay's cursor in a partition.
type RelayCursor struct {
	Partition int16
	Position  int64
}

// ReplayStore runs changes of replays.
type ReplayStore interface {
	// ChangeReplays runs decide in one transaction that holds the head of the
	// platform's partition and, if cursors is true, the relay's cursors.
	ChangeReplays(ctx context.Context, cursors bool, decide func(ReplayTx) error) error
}

// ReplayReader reads replays for authorized callers.
type ReplayReader interface {
	// Replay reads a replay; nil if the id is unknown.
	Replay(ctx context.Context, id uuid.UUID) (*Replay, error)
	// Replays lists the replays, the newest first.
	Replays(ctx context.Context, p commands.Page) ([]Replay, error)
}

// ReplayTx is the transaction of a change of replays.
type ReplayTx interface {
	commands.Tx
	commands.SagaStarter
	RelayCursors() ([]RelayCursor, error)
	// Before returns, for each partition, the last position recorded before a time.
	Before(at time.Time) ([events.Partitions]int64, error)
	// Recorded reports whether the log has a position.
	Recorded(p events.Position) (bool, error)
	StartReplay(r Replay) error
	// RewindRelay moves cursors back and revokes their leases.
	RewindRelay(steps []events.ReplayStep) error
	// EndReplay ends a running replay, with the units' last figures; false if it no
	// longer runs.
	EndReplay(id uuid.UUID, state, failure string, at time.Time, units []ReplayUnit) (bool, error)
	// Replay reads a replay; nil if the id is unknown.
	Replay(id uuid.UUID) (*Replay, error)
}

// Replays starts replays and records their ends.
type Replays struct {
	Store ReplayStore
	Now   commands.Clock
	NewID func() uuid.UUID
	Wake  func() // wakes the runner of replays of this instance; may be nil
}

func (c *Replays) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

// changeOf returns the transaction of a change; cursors as in ReplayStore.
func (c *Replays) changeOf(ctx context.Context, cursors bool) commands.Transaction[ReplayTx] {
	return func(decide func(ReplayTx) error) error { return c.Store.ChangeReplays(ctx, cursors, decide) }
}

// begin makes the replay of a request.
func (c *Replays) begin(kind, reason string) Replay {
	return Replay{ID: c.NewID(), Kind: kind, Reason: reason, State: ReplayRunning, CreatedAt: c.now()}
}

// ReplayRange is a request to publish events again: positions From to To of one
// partition, or the events recorded from FromTime on and before ToTime.
type ReplayRange struct {
	Topic            string
	From, To         *events.Position
	TenantID         uuid.UUID // Nil: all
	FromTime, ToTime time.Time // zero: not given
	Reason           string
}

// Range publishes a range of the log again, for outside readers. Each record has a
// mark, so that the service's consumers skip it, and is otherwise unchanged. Events
// that the relay has not published yet are left to the relay.
func (c *Replays) Range(ctx context.Context, req commands.Request, in ReplayRange) (Replay, error) {
	if refusal := in.check(); refusal != nil {
		return Replay{}, refusal
	}
	r := c.begin(events.ReplayRange, in.Reason)
	r.Topic = in.Topic
	if in.TenantID != uuid.Nil {
		r.TenantID = &in.TenantID
	}
	started, err := commands.Change(c.changeOf(ctx, false), req, func(tx ReplayTx) (Replay, error) {
		if r.TenantID != nil {
			if t, err := tx.Tenant(in.TenantID); err != nil || t == nil {
				return r, commands.OrRefuse(err, "tenant_not_found", "/tenantId", "no such tenant")
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
		if err := startRange(tx, c.NewID(), r.ID); err != nil {
			return r, err
		}
		said := events.Replay{Kind: r.Kind, Topic: r.Topic, TenantID: r.TenantID, Reason: r.Reason}
		for _, u := range r.Units {
			said.Stretches = append(said.Stretches, events.ReplayStep{Partition: u.Partition, From: u.First, To: u.UpTo})
		}
		_, err = commands.AppendEvent(tx, &req, r.ID, r.CreatedAt, events.Platform, events.ReplayRequested, said)
		return r, err
	})
	if err == nil && c.Wake != nil {
		c.Wake()
	}
	return started, err
}

func (in *ReplayRange) check() *domain.Error {
	topic, known := events.TopicOf(in.Topic)
	switch {
	case !known || topic.Outside():
		return domain.Refuse("topic_invalid", "/topic", "there is no topic %.64q that the log is published to", in.Topic)
	case (in.From == nil) != (in.To == nil):
		return domain.Refuse("range_invalid", "/from", "from and to go together")
	case in.From == nil && in.FromTime.IsZero():
		return domain.Refuse("range_invalid", "/from", "give the range: from and to, or fromTime and toTime")
	case in.From != nil && (!in.FromTime.IsZero() || !in.ToTime.IsZero()):
		return domain.Refuse("range_invalid", "/fromTime", "a range is of positions or of times, not of both")
	case in.From != nil && (in.From.Partition != in.To.Partition || in.From.Number < 1 || in.To.Number < in.From.Number):
		return domain.Refuse("range_invalid", "/to", "from and to are of one partition, and to is not before from")
	case in.From == nil && !in.ToTime.IsZero() && !in.ToTime.After(in.FromTime):
		return domain.Refuse("range_invalid", "/toTime", "toTime is after fromTime")
	case in.From != nil && in.TenantID != uuid.Nil && events.PartitionOf(in.TenantID) != in.From.Partition:
		return domain.Refuse("range_invalid", "/tenantId", "the tenant lives in partition %d", events.PartitionOf(in.TenantID))
	}
	return domain.CheckReason(in.Reason)
}

func remaining(units []ReplayUnit) (positions int64) {
	for _, u := range units {
		positions += u.UpTo - u.Cursor
	}
	return positions
}

// units returns the parts of the range that are already published.
func (in *ReplayRange) units(tx ReplayTx) ([]ReplayUnit, error) {
	cursors, err := tx.RelayCursors()
	if err != nil {
		return nil, err
	}
	if in.From != nil {
		published := cursors[in.From.Partition].Position
		if in.From.Number > published {
			return nil, domain.Refuse("range_invalid", "/from", "%s is not published yet: the relay is at %d", in.From, published)
		}
		return []ReplayUnit{{Partition: in.From.Partition, First: in.From.Number, Cursor: in.From.Number - 1,
			UpTo: min(in.To.Number, published)}}, nil
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
