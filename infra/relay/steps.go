package relay

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Steps runs the loops of Run one step at a time, in an order that the caller decides, as package
// simulation does. Its methods must not be called concurrently.
//
// The simulation cannot use Run: if several channels are ready, its loop selects one at random, so that a
// seed would not repeat the same run, and it polls the heads every 50 ms. Steps calls the same functions
// as that loop.
type Steps struct{ s *Subscriber }

// Steps returns a relay that acts only when a step is called.
func (r *Relay) Steps() *Steps {
	c := r.withDefaults()
	c.inTurn = true
	return &Steps{newSubscriber(c)}
}

// Lease runs one round of leasing.
func (s *Steps) Lease(ctx context.Context) error { return s.s.leases.round(ctx) }

// Look reads the heads of the log.
func (s *Steps) Look(ctx context.Context) { s.s.readHeads(ctx) }

// Carry publishes one batch and reports whether there was one.
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
