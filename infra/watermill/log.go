package watermill

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
	"github.com/meterplex/meterplex/events"
)

// LogSubscriber is the event log as a Watermill subscriber. A message
// holds no events: it is a list of positions, at most one for each partition, up to which the consumer
// reads the log itself. The next message follows the Ack of the last one. After Nack the positions are
// looked up again.
type LogSubscriber struct {
	// Ahead returns the positions that the consumer has to read up to.
	Ahead func(ctx context.Context) ([]events.Position, error)
	// Every is the interval of calling Ahead. Wake is the hint to call it at once; may be nil.
	Every time.Duration
	Wake  <-chan struct{}
	// Eager follows each hint at once: the handler rests after its work as one of batches does, so that hints gather.
	Eager bool
	// Hinted reports that the hints of all instances arrive. While the backlog is empty, the interval
	// is HintedEvery then, or Every if that is longer. May be nil.
	Hinted func() bool
	// Ticks are the moments at which Ahead is called while the backlog is empty.
	Ticks loop.Ticks
	// Grace bounds how long a message in flight may still be settled after the end of its subscription; 0:
	// 5 s.
	Grace  time.Duration
	Logger *slog.Logger

	open Subscriptions
}

var _ message.Subscriber = (*LogSubscriber)(nil)

// DefaultLogEvery is the longest delay after a lost hint.
const DefaultLogEvery = 50 * time.Millisecond

// HintedEvery is the interval of polls while hints arrive. It bounds the delay after an instance that
// ended between a commit and its hint.
const HintedEvery = 250 * time.Millisecond

// aheadTimeout bounds a look for positions: a server that does not answer may have been replaced.
const aheadTimeout = 5 * time.Second

// defaultLogGrace is longer than a consumer's longest transaction on a healthy server.
const defaultLogGrace = 5 * time.Second

// minRound keeps a stream of hints from becoming a stream of transactions, each of which costs about the
// same for one event as for a hundred. A consumer of the log is behind it by half of this on average.
const minRound = 25 * time.Millisecond

// Subscribe returns at once. The topic only names the subscription.
func (s *LogSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) { s.follow(ctx, topic, out) })
}

// Close ends all subscriptions and waits for them.
func (s *LogSubscriber) Close() error { return s.open.Close() }

func (s *LogSubscriber) follow(ctx context.Context, topic string, out chan<- *message.Message) {
	delivery := Delivery{Out: out, Grace: cmp.Or(s.Grace, defaultLogGrace)}
	log := retries.New(s.Logger, slog.LevelWarn, "cannot read the log; will retry", "reading the log works again")
	timer := time.NewTimer(0)
	defer timer.Stop()
	var earliest time.Time // of a round that a hint starts
	for failures := 0; ; {
		wake := s.Wake
		if failures > 0 {
			wake = nil // a new event does not end an outage
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-wake:
			sleep(ctx, time.Until(earliest))
			select {
			case <-wake: // this round sees its events, too
			default:
			}
		}
		if !s.Eager {
			earliest = time.Now().Add(min(minRound, s.Every))
		}
		positions, err := s.ahead(ctx)
		log.Report(ctx, err, "consumer", topic)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			timer.Reset(pauses.Jittered(failures, rand.N))
			continue
		}
		failures = 0
		every := s.Every
		if len(positions) == 0 {
			if s.Hinted != nil && s.Hinted() {
				every = max(every, HintedEvery)
			}
			every = s.Ticks.Until(every)
		} else {
			switch delivery.Send(ctx, logMessage(positions)) {
			case Stopped, Unsettled:
				return
			case Nacked: // the router has paused
				timer.Reset(0)
				continue
			}
		}
		timer.Reset(every)
	}
}

// logMessage returns a message with positions, separated by spaces.
func logMessage(positions []events.Position) *message.Message {
	texts := make([]string, len(positions))
	for i, p := range positions {
		texts[i] = p.String()
	}
	return message.NewMessage(texts[0], []byte(strings.Join(texts, " ")))
}

// Positions decodes a message of a LogSubscriber.
func Positions(msg *message.Message) ([]events.Position, error) {
	var positions []events.Position
	for text := range strings.FieldsSeq(string(msg.Payload)) {
		p, err := events.ParsePosition(text)
		if err != nil {
			return nil, fmt.Errorf("decode the positions %s: %w", msg.UUID, err)
		}
		positions = append(positions, p)
	}
	return positions, nil
}

// AddLogConsumer adds a handler that reads the log up to each message's positions; read returns the number of events. After an error the
// positions are looked up again, without a limit, after a pause that grows from 50 ms to 5 s.
func AddLogConsumer(router *message.Router, name string, sub *LogSubscriber, read func(ctx context.Context, upTo []events.Position) (int,
	error)) {
	router.AddConsumerHandler(name, name, sub, func(msg *message.Message) error {
		positions, err := Positions(msg)
		if err != nil {
			return err
		}
		began := time.Now()
		n, err := read(msg.Context(), positions)
		if err == nil && sub.Eager {
			rest(msg.Context(), n, began)
		}
		return err
	})
}

func (s *LogSubscriber) ahead(ctx context.Context) ([]events.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	return s.Ahead(ctx)
}
