package relay

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Steps are what Run does in its loops, one at a time, for who decides their order:
// the simulation of infra/postgres does. They are not to be called side by side.
//
// Run itself is not for it: where several of its channels are ready its loop takes one
// at random, so that a seed would not be the same run twice, and it looks at the heads
// every 50 ms for ever. What stands here calls what that loop calls.
type Steps struct{ s *Subscriber }

// Steps makes a relay that does nothing by itself.
func (r *Relay) Steps() *Steps { return &Steps{newSubscriber(r.withDefaults())} }

// Lease is a round of the leases.
func (s *Steps) Lease(ctx context.Context) error { return s.s.leases.round(ctx) }

// Look sees how far the log goes.
func (s *Steps) Look(ctx context.Context) { s.s.lookAtHeads(ctx) }

// Carry takes one batch all the way, and tells whether there was one.
func (s *Steps) Carry(ctx context.Context) bool {
	spans := s.s.held.choose(time.Now(), s.s.MaxEvents)
	if len(spans) == 0 {
		return false
	}
	out, done := make(chan *message.Message), make(chan struct{})
	go func() {
		defer close(done)
		for msg := range out {
			if s.s.publish(msg) == nil {
				msg.Ack()
			} else {
				msg.Nack()
			}
		}
	}()
	s.s.carry(ctx, spans, out)
	close(out)
	<-done
	return true
}
