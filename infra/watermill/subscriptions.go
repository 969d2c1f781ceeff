package watermill

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Subscriptions holds the open subscriptions of a subscriber. Each ends with its context or with Close.
// Its channel is closed once the batch in flight is settled or abandoned. The zero value is ready to use.
type Subscriptions struct {
	mu      sync.Mutex
	closed  bool
	cancels map[int]context.CancelFunc
	next    int
	open    sync.WaitGroup
}

// Start runs a subscription that sends to the returned channel. After Close it returns ErrClosed.
func (s *Subscriptions) Start(ctx context.Context, topic string, run func(ctx context.Context, out chan<- *message.Message)) (
	<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, ErrClosed)
	}
	ctx, cancel := context.WithCancel(ctx)
	if s.cancels == nil {
		s.cancels = map[int]context.CancelFunc{}
	}
	s.next++
	id := s.next
	s.cancels[id] = cancel
	out := make(chan *message.Message)
	s.open.Go(func() {
		defer close(out)
		defer s.forget(id)
		run(ctx, out)
	})
	return out, nil
}

func (s *Subscriptions) forget(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels[id]()
	delete(s.cancels, id)
}

// Close ends all subscriptions and waits for them. No subscription can start afterwards.
func (s *Subscriptions) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.cancels {
		cancel()
	}
	s.mu.Unlock()
	s.open.Wait()
	return nil
}
