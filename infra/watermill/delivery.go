package watermill

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Outcome is what became of a message that was sent to a handler.
type Outcome int

// The outcomes.
const (
	Stopped Outcome = iota // not handed over: the subscription ended
	Acked
	Nacked
	Unsettled // handed over, and the grace after the subscription's end was over too
)

// Delivery hands messages to the one who subscribed, one at a time.
type Delivery struct {
	// Out is what Subscribe returned.
	Out chan<- *message.Message
	// Grace is how long a message in flight may still be settled after the
	// subscription was ended. Its context is cancelled only then, so that a
	// handler's transaction is not lost for an ordinary shutdown.
	Grace time.Duration
}

// Send hands over the message and waits until it is settled. The end of ctx ends
// the subscription; the values of ctx are the message's.
func (d *Delivery) Send(ctx context.Context, msg *message.Message) Outcome {
	values := context.WithValue(context.WithoutCancel(ctx), stoppingKey{}, ctx.Done())
	handling, cancel := context.WithCancel(values)
	defer cancel()
	msg.SetContext(handling)
	if ctx.Err() != nil {
		return Stopped // a handler that waits must not be preferred by chance
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
		return d.last(msg)
	}
}

func (d *Delivery) last(msg *message.Message) Outcome {
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

// stopping is closed when the message's subscription has ended, while its
// handler may still finish; nil where the subscriber does not say.
func stopping(ctx context.Context) <-chan struct{} {
	ch, _ := ctx.Value(stoppingKey{}).(<-chan struct{})
	return ch
}
