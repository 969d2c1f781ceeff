package pgpipe

import (
	"context"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/infra/watermill"
)

// subscription delivers the rows that a watermill-sql subscriber reads. After a Nack that subscriber
// would continue in the same transaction. Therefore it is closed, and after the pause a new one reads the
// same row again.
type subscription struct {
	cfg      *SubscriberConfig
	topic    string
	delivery watermill.Delivery
	polls    *polling

	first   string // uuid of the first row being delivered
	done    int    // number of acknowledged records from there on
	refused int    // size of the last batch that was not acknowledged, 0 without one
}

func (s *subscription) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.session(ctx)
		loop.Sleep(ctx, nackPause)
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
		BackoffManager: s.polls,
		SchemaAdapter:  s.cfg.schema(),
		OffsetsAdapter: s.cfg.offsets(),
	}, watermill.Logger(s.cfg.Logger))
	if err != nil {
		s.cfg.Logger.Error("cannot create a watermill-sql subscriber", "topic", s.topic, "error", err)
		return
	}
	// Closing lets the acknowledgement of the last row commit. After the grace period a hanging database
	// is cut off.
	reading, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	pauses, endPauses := context.WithCancel(ctx)
	s.polls.ctx = pauses
	unlink := context.AfterFunc(ctx, cut)
	messages, err := inner.Subscribe(reading, s.topic)
	unlink()
	if err != nil {
		endPauses()
		s.polls.HandleError(nil, false, err)
		loop.Sleep(ctx, retryPause)
		return
	}
	defer func() {
		endPauses() // else an idle pause would delay Close
		timer := time.AfterFunc(s.delivery.Grace, cut)
		defer timer.Stop()
		_ = inner.Close() // never returns an error
	}()
	s.read(ctx, messages)
}

func (s *subscription) read(ctx context.Context, messages <-chan *message.Message) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg, ok := <-messages:
			if !ok || !s.deliver(ctx, msg) {
				return
			}
		}
	}
}

// deliver delivers the joined rows in batches and acknowledges them once all batches are acknowledged. A
// batch that was refused is delivered again unchanged, even if more rows have arrived. Batches that were
// acknowledged are not delivered again.
func (s *subscription) deliver(ctx context.Context, msg *message.Message) bool {
	records, err := splitRows(msg.Payload)
	if err != nil {
		// The log has the events: a consumer finds the gap and reads them there.
		s.cfg.Logger.Error("skipping a row of the pipe that is not a valid frame", "topic", s.topic, "row", msg.UUID, "error", err)
	}
	if s.first != msg.UUID {
		s.first, s.done, s.refused = msg.UUID, 0, 0
	}
	for s.done < len(records) {
		size := min(s.cfg.MaxRecords, len(records)-s.done)
		if s.refused > 0 {
			size = s.refused
		}
		if s.delivery.SendRecords(ctx, records[s.done:s.done+size]) != watermill.Acked {
			s.refused = size
			return false
		}
		s.done, s.refused = s.done+size, 0
	}
	handling := msg.Context()
	msg.Ack()
	// If it is closed before it has seen the Ack, watermill-sql may ignore the Ack.
	<-handling.Done()
	s.first = "" // if the row comes again, the group was rewound
	return true
}
