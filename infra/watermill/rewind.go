package watermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
)

// Rewind requests that a consumer group goes back, in each partition, to the records published at or
// after a time, in milliseconds since 1970. A negative time means the oldest record.
type Rewind struct {
	ID   uuid.UUID
	From int64
}

// Rewinds provides rewind requests and records their results.
type Rewinds interface {
	// Due returns the next rewind, or nil.
	Due(ctx context.Context) (*Rewind, error)
	// Done ends a rewind with the moved offsets, or with a failure.
	Done(ctx context.Context, r *Rewind, steps []events.ReplayStep, failure string) error
}

// Mover moves a group's offsets back, never forward. It returns ErrGroupBusy while the group has members.
type Mover func(ctx context.Context, group, topic string, from int64) ([]events.ReplayStep, error)

// ErrGroupBusy says that a group has members. Only members can move its offsets.
var ErrGroupBusy = errors.New("the group has members")

// Rewindable is a subscriber whose group can be rewound at run time. The pipes do not support that
// directly: every member leaves when it sees a rewind, one instance moves the offsets of the empty group,
// and all members join again. Consumers skip the records that they have applied, so that no event counts
// twice.
type Rewindable struct {
	Inner   message.Subscriber
	Group   string
	Rewinds Rewinds
	Move    Mover
	Logger  *slog.Logger

	// Every is the interval at which a member looks for a rewind (1 s). Patience bounds how long a rewind
	// waits for members to leave (1 min): the session of a dead member times out sooner.
	Every, Patience time.Duration
	Ticks           loop.Ticks // the moments of looks for a rewind

	open Subscriptions
}

const (
	rewindEvery    = time.Second
	rewindPatience = time.Minute
	// moveRetry is the interval at which moving a group is tried.
	moveRetry = 250 * time.Millisecond
	// recordTime bounds the time between moving a group and recording it.
	recordTime = time.Second
	// A hanging database or broker must not block the member.
	askTimeout  = 5 * time.Second
	moveTimeout = 30 * time.Second
)

var _ message.Subscriber = (*Rewindable)(nil)

// Subscribe returns at once. The channel is closed when Inner would close it.
func (s *Rewindable) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) {
		for ctx.Err() == nil {
			if r := s.due(ctx); r != nil {
				s.rewind(ctx, topic, r)
				continue
			}
			s.readAsMember(ctx, topic, out)
		}
	})
}

// Close ends all subscriptions and waits for them.
func (s *Rewindable) Close() error { return errors.Join(s.open.Close(), s.Inner.Close()) }

func (s *Rewindable) due(ctx context.Context) *Rewind {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := s.Rewinds.Due(ctx)
	if err != nil {
		return nil // the member continues and asks again later
	}
	return r
}

// readAsMember reads until ctx ends or a rewind is due.
func (s *Rewindable) readAsMember(ctx context.Context, topic string, out chan<- *message.Message) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	in, err := s.Inner.Subscribe(reading, topic)
	if err != nil {
		if ctx.Err() == nil {
			s.Logger.Error("cannot subscribe", "topic", topic, "group", s.Group, "error", err)
			sleep(ctx, rewindEvery)
		}
		return
	}
	look := time.NewTimer(s.Ticks.Until(cmp.Or(s.Every, rewindEvery)))
	defer look.Stop()
	for {
		select {
		case msg, open := <-in:
			if !open {
				sleep(ctx, moveRetry) // do not spin if the inner subscription ends at once
				return
			}
			s.forward(ctx, msg, out)
		case <-look.C:
			if s.due(ctx) != nil {
				stop()
			}
			look.Reset(s.Ticks.Until(cmp.Or(s.Every, rewindEvery)))
		}
	}
}

// forward passes a message on. If the subscription has ended, the message is delivered again later.
func (s *Rewindable) forward(ctx context.Context, msg *message.Message, out chan<- *message.Message) {
	select {
	case out <- msg:
	case <-ctx.Done():
		msg.Nack()
	}
}

// rewind moves the group once it is empty, unless another instance has moved it.
func (s *Rewindable) rewind(ctx context.Context, topic string, r *Rewind) {
	began := time.Now()
	for ctx.Err() == nil {
		steps, err := s.move(ctx, topic, r)
		failure := ""
		switch late := time.Since(began) > cmp.Or(s.Patience, rewindPatience); {
		case err == nil && len(steps) == 0 && s.doneElsewhere(ctx, r):
			return
		case err == nil:
			s.Logger.Info("consumer rewound", "group", s.Group, "partitions", len(steps))
		case late && errors.Is(err, ErrGroupBusy):
			failure = fmt.Sprintf("the group had members for %s", time.Since(began).Round(time.Second))
		case late:
			s.Logger.Warn("cannot rewind the consumer; will retry", "group", s.Group, "error", err)
			began = time.Now()
			fallthrough
		default:
			sleep(ctx, moveRetry)
			if now := s.due(ctx); now == nil || now.ID != r.ID {
				return
			}
			continue
		}
		if err := s.Rewinds.Done(ctx, r, steps, failure); err != nil && ctx.Err() == nil {
			s.Logger.Warn("cannot record a consumer's rewind; will retry", "group", s.Group, "error", err)
			sleep(ctx, moveRetry)
		}
		return
	}
}

// doneElsewhere waits if no offset moved: another instance may have moved the group and be
// about to record it.
func (s *Rewindable) doneElsewhere(ctx context.Context, r *Rewind) bool {
	sleep(ctx, recordTime)
	now := s.due(ctx)
	return now == nil || now.ID != r.ID
}

func (s *Rewindable) move(ctx context.Context, topic string, r *Rewind) ([]events.ReplayStep, error) {
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	return s.Move(ctx, s.Group, topic, r.From)
}
