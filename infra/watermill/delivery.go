package watermill

import (
	"context"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
)

// Outcome is the result of sending a message to a handler.
type Outcome int

// The outcomes.
const (
	Stopped Outcome = iota // not sent: the subscription ended
	Acked
	Nacked
	Unsettled // sent, but not settled within the grace period after the subscription ended
)

// Delivery sends messages to a subscriber's channel, one at a time.
type Delivery struct {
	// Out is the channel that Subscribe returned.
	Out chan<- *message.Message
	// Grace bounds how long a message in flight may still be settled after its subscription has ended.
	// The message's context is cancelled only then, so that an ordinary shutdown does not abort a
	// handler's transaction.
	Grace time.Duration
}

// Send sends the message and waits until it is settled. The subscription ends with ctx; the message
// inherits the values of ctx.
func (d *Delivery) Send(ctx context.Context, msg *message.Message) Outcome {
	values := context.WithValue(context.WithoutCancel(ctx), stoppingKey{}, ctx.Done())
	handling, cancel := context.WithCancel(values)
	defer cancel()
	msg.SetContext(handling)
	if ctx.Err() != nil {
		return Stopped // otherwise select could choose a waiting handler
	}
	select {
	case d.Out <- msg:
	case <-ctx.Done():
		return Stopped
	}
	select {
	case <-msg.Acked():
		return Acked
	case <-msg.Nacked():
		return Nacked
	case <-ctx.Done():
		return d.awaitSettled(msg)
	}
}

// SendRecords sends a batch. The handler gets the records themselves, and must not change them.
func (d *Delivery) SendRecords(ctx context.Context, records []events.Record) Outcome {
	return d.Send(WithRecords(ctx, records), message.NewMessage(wm.NewUUID(), nil))
}

func (d *Delivery) awaitSettled(msg *message.Message) Outcome {
	timer := time.NewTimer(d.Grace)
	defer timer.Stop()
	select {
	case <-msg.Acked():
		return Acked
	case <-msg.Nacked():
		return Nacked
	case <-timer.C:
		return Unsettled
	}
}

type stoppingKey struct{}

// stopping returns a channel that is closed when the message's subscription has ended, while its handler
// may still finish. It returns nil if the subscriber did not set one.
func stopping(ctx context.Context) <-chan struct{} {
	ch, _ := ctx.Value(stoppingKey{}).(<-chan struct{})
	return ch
}
