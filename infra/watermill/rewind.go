package watermill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Rewind asks a consumer group to go back: in each partition, to what was published
// at or after a time, in milliseconds since 1970; below 0: to the oldest record.
type Rewind struct {
	ID   uuid.UUID
	From map[int16]int64
}

// Rewinds tells which groups are to go back.
type Rewinds interface {
	// Due gives the next rewind of a group; nil where there is none.
	Due(ctx context.Context, group string) (*Rewind, error)
	// Done ends it: these offsets were moved, or it failed.
	Done(ctx context.Context, group string, r *Rewind, steps []events.ReplayStep, failure string) error
}

// Mover moves a group's offsets back, never forward. It fails with ErrGroupBusy
// while the group has members.
type Mover func(ctx context.Context, group, topic string, from map[int16]int64) ([]events.ReplayStep, error)

// ErrGroupBusy says that a group has members, whose offsets nobody else can move.
var ErrGroupBusy = errors.New("the group has members")

// Rewindable is a subscriber whose group can be moved back while it runs, which no
// pipe allows from outside: each instance's member leaves when it learns of a rewind,
// whoever finds the group empty moves it, and all come back. Consumers know what
// they have seen; nothing is counted twice for it.
type Rewindable struct {
	Inner   message.Subscriber
	Group   string
	Rewinds Rewinds
	Move    Mover
	Logger  *slog.Logger

	// Every is how often a member asks (1 s); Patience how long a group may keep
	// members until its rewind is given up (1 min): a dead one's session ends sooner.
	Every, Patience time.Duration

	open Subscriptions
}

const (
	rewindEvery    = time.Second
	rewindPatience = time.Minute
	// moveAgain is how often a group is asked whether it is empty.
	moveAgain = 250 * time.Millisecond
	// tellTime is how long an instance that moved a group has to tell of it.
	tellTime = time.Second
	// A database or broker that hangs must not take the member with it.
	askTimeout  = 5 * time.Second
	moveTimeout = 30 * time.Second
)

var _ message.Subscriber = (*Rewindable)(nil)

// Subscribe returns at once. The channel is closed as Inner's would be.
func (s *Rewindable) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) {
		for ctx.Err() == nil {
			if r := s.due(ctx); r != nil {
				s.goBack(ctx, topic, r)
				continue
			}
			s.member(ctx, topic, out)
		}
	})
}

// Close ends all subscriptions and waits for them.
func (s *Rewindable) Close() error { return errors.Join(s.open.Close(), s.Inner.Close()) }

func (s *Rewindable) due(ctx context.Context) *Rewind {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := s.Rewinds.Due(ctx, s.Group)
	if err != nil {
		return nil // a member that cannot ask goes on; it asks again
	}
	return r
}

// member reads until ctx ends or a rewind is due.
func (s *Rewindable) member(ctx context.Context, topic string, out chan<- *message.Message) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	in, err := s.Inner.Subscribe(reading, topic)
	if err != nil {
		if ctx.Err() == nil {
			s.Logger.Error("cannot subscribe", "topic", topic, "group", s.Group, "error", err)
			wait(ctx, rewindEvery)
		}
		return
	}
	tick := time.NewTicker(orElse(s.Every, rewindEvery))
	defer tick.Stop()
	for {
		select {
		case msg, open := <-in:
			if !open {
				wait(ctx, moveAgain) // an inner subscriber that ends at once must not be spun
				return
			}
			s.hand(ctx, msg, out)
		case <-tick.C:
			if s.due(ctx) != nil {
				stop()
			}
		}
	}
}

// hand passes a message on; one that nobody takes any more comes again.
func (s *Rewindable) hand(ctx context.Context, msg *message.Message, out chan<- *message.Message) {
	select {
	case out <- msg:
	case <-ctx.Done():
		msg.Nack()
	}
}

// goBack moves the group as soon as it is empty, unless another instance has.
func (s *Rewindable) goBack(ctx context.Context, topic string, r *Rewind) {
	began := time.Now()
	for ctx.Err() == nil {
		steps, err := s.move(ctx, topic, r)
		failure := ""
		switch late := time.Since(began) > orElse(s.Patience, rewindPatience); {
		case err == nil && len(steps) == 0 && s.doneElsewhere(ctx, r):
			return
		case err == nil:
			s.Logger.Info("the consumer went back", "group", s.Group, "partitions", len(steps))
		case late && errors.Is(err, ErrGroupBusy):
			failure = fmt.Sprintf("the group had members for %s", time.Since(began).Round(time.Second))
		case late:
			s.Logger.Warn("the consumer cannot go back and is tried again", "group", s.Group, "error", err)
			began = time.Now()
			fallthrough
		default:
			wait(ctx, moveAgain)
			if now := s.due(ctx); now == nil || now.ID != r.ID {
				return
			}
			continue
		}
		if err := s.Rewinds.Done(ctx, s.Group, r, steps, failure); err != nil && ctx.Err() == nil {
			s.Logger.Warn("that the consumer went back is not recorded yet", "group", s.Group, "error", err)
			wait(ctx, moveAgain)
		}
		return
	}
}

// doneElsewhere waits where there was nothing to move: another instance may have
// moved the group just now, and is about to tell how far.
func (s *Rewindable) doneElsewhere(ctx context.Context, r *Rewind) bool {
	wait(ctx, tellTime)
	now := s.due(ctx)
	return now == nil || now.ID != r.ID
}

func (s *Rewindable) move(ctx context.Context, topic string, r *Rewind) ([]events.ReplayStep, error) {
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	return s.Move(ctx, s.Group, topic, r.From)
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
