package pgpipe

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/infra/watermill"
)

// subscription hands out what a watermill-sql subscriber reads. That one goes on
// with the same transaction when a message was not acknowledged; so it is closed
// then, and a new one reads the same row again after the pause.
type subscription struct {
	cfg      *SubscriberConfig
	topic    string
	delivery watermill.Delivery
	errors   *polling

	first   string // the first row of what is being handed out
	done    int    // how many records from there on are acknowledged
	refused int    // size of the portion that was refused last, 0 for none
}

func (s *subscription) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.session(ctx)
		pause(ctx, nackPause)
	}
}

// session reads until a batch is refused, the database fails or ctx ends.
func (s *subscription) session(ctx context.Context) {
	deadline := ackDeadline
	inner, err := wmsql.NewSubscriber(s.cfg.DB, wmsql.SubscriberConfig{
		ConsumerGroup:  s.cfg.Group,
		AckDeadline:    &deadline,
		PollInterval:   s.cfg.PollInterval,
		ResendInterval: s.cfg.PollInterval,
		RetryInterval:  retryPause,
		BackoffManager: s.errors,
		SchemaAdapter:  s.cfg.schema(),
		OffsetsAdapter: s.cfg.offsets(),
	}, watermill.Logger(s.cfg.Logger))
	if err != nil {
		s.cfg.Logger.Error("cannot make a subscriber of watermill-sql", "topic", s.topic, "error", err)
		return
	}
	// Closing lets the acknowledgement of the last row be committed; a database
	// that hangs is cut off after the grace.
	reading, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	unlink := context.AfterFunc(ctx, cut)
	messages, err := inner.Subscribe(reading, s.topic)
	unlink()
	if err != nil {
		s.errors.HandleError(nil, false, err)
		pause(ctx, retryPause)
		return
	}
	defer func() {
		timer := time.AfterFunc(s.delivery.Grace, cut)
		defer timer.Stop()
		_ = inner.Close() // never an error
	}()
	s.read(ctx, messages)
}

func (s *subscription) read(ctx context.Context, messages <-chan *message.Message) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg, ok := <-messages:
			if !ok || !s.handOut(ctx, msg) {
				return
			}
		}
	}
}

// handOut delivers what was read in portions and acknowledges it when all of them
// are. A portion that was refused is given out again as it was, though more rows
// may have come; one that was acknowledged is not given out again with it.
func (s *subscription) handOut(ctx context.Context, msg *message.Message) bool {
	records, err := unjoin(msg.Payload)
	if err != nil {
		// The log has what is in it: a consumer sees the gap and reads it there.
		s.cfg.Logger.Error("a row of the pipe is not a frame; it is passed over", "topic", s.topic, "row", msg.UUID, "error", err)
	}
	if s.first != msg.UUID {
		s.first, s.done, s.refused = msg.UUID, 0, 0
	}
	for s.done < len(records) {
		size := min(s.cfg.MaxRecords, len(records)-s.done)
		if s.refused > 0 {
			size = s.refused
		}
		if s.delivery.Send(ctx, watermill.Batch(records[s.done:s.done+size])) != watermill.Acked {
			s.refused = size
			return false
		}
		s.done, s.refused = s.done+size, 0
	}
	handling := msg.Context()
	msg.Ack()
	// Closed before it has seen the Ack, watermill-sql may prefer the closing.
	<-handling.Done()
	s.first = "" // if it comes again, the group was moved back
	return true
}

// polling says how long to wait for the next poll, and tells of errors once when
// they begin and once when they end.
type polling struct {
	logger       *slog.Logger
	topic, group string
	interval     time.Duration
	failing      bool
}

// HandleError is watermill-sql's interface.
func (p *polling) HandleError(_ wm.LoggerAdapter, nothing bool, err error) time.Duration {
	switch {
	case err == nil:
		if p.failing {
			p.failing = false
			p.logger.Info("reading the pipe works again", "topic", p.topic, "group", p.group)
		}
		if nothing {
			return p.interval
		}
		return 0
	case errors.Is(err, context.Canceled):
		return p.interval
	case strings.Contains(err.Error(), "could not serialize access"):
		return p.interval // another member of the group was faster
	}
	if !p.failing {
		p.failing = true
		p.logger.Warn("reading the pipe fails; trying again until it works", "topic", p.topic, "group", p.group, "error", err)
	}
	return retryPause
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
