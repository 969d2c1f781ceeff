package watermill

import (
	"cmp"
	"context"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// HintSubscriber turns hints of work that waits in this process into messages, for a consumer that takes the
// work itself. A message is empty, and the next one follows the Ack or the Nack of the last. Work that a
// handler fails on is not kept here.
type HintSubscriber struct {
	Ready <-chan struct{}
	// Grace bounds how long a message in flight may still be settled after the end of its subscription; 0:
	// 5 s.
	Grace time.Duration

	open Subscriptions
}

var _ message.Subscriber = (*HintSubscriber)(nil)

// Subscribe returns at once. The topic only names the subscription.
func (s *HintSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) {
		delivery := Delivery{Out: out, Grace: cmp.Or(s.Grace, defaultLogGrace)}
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.Ready:
			}
			if out := delivery.Send(ctx, message.NewMessage(wm.NewUUID(), nil)); out == Stopped || out == Unsettled {
				return
			}
		}
	})
}

// Close ends all subscriptions and waits for them.
func (s *HintSubscriber) Close() error { return s.open.Close() }

// AddHintConsumer adds a handler that does the waiting work after each hint, and rests after it as a consumer
// of batches does. Work returns the number of events.
func AddHintConsumer(router *message.Router, name string, sub *HintSubscriber, work func(ctx context.Context) (int, error)) {
	router.AddConsumerHandler(name, name, sub, func(msg *message.Message) error {
		began := time.Now()
		n, err := work(msg.Context())
		if err == nil {
			rest(msg.Context(), n, began)
		}
		return err
	})
}
