package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Subscriber is the log as a Watermill subscriber. A message is one batch: events
// of one or more leased partitions, framed. Several messages may be out at once,
// never two of the same partition. Ack moves the cursors, which is refused where
// the lease was lost; Nack brings the same batch again after a while.
type Subscriber struct {
	*Relay
	leases *leases
	held   *holdings
	freed  chan struct{} // a batch ended
	wait   sync.WaitGroup

	complaints, notes everySecond

	mu     sync.Mutex
	cancel []context.CancelFunc
	closed bool
}

var _ message.Subscriber = (*Subscriber)(nil)

func newSubscriber(r *Relay) *Subscriber {
	l := newLeases(r)
	return &Subscriber{Relay: r, leases: l, held: l.held, freed: make(chan struct{}, 1)}
}

// Subscribe opens the log's stream of batches; topic names it and says nothing
// more. There is one stream: a second one would only share it.
func (s *Subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("the relay's subscriber is closed")
	}
	ctx, cancel := context.WithCancel(ctx)
	s.cancel = append(s.cancel, cancel)
	out := make(chan *message.Message)
	s.wait.Go(func() {
		defer cancel()
		defer close(out)
		s.dispatch(ctx, out)
	})
	return out, nil
}

// Close ends the streams; it waits for the batches under way as long as CloseGrace.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.cancel {
		cancel()
	}
	s.mu.Unlock()
	s.wait.Wait()
	return nil
}

const (
	// pollHeads is the bound on finding new events when no hint comes.
	pollHeads = 50 * time.Millisecond
	// minPoll keeps a storm of hints from becoming a storm of queries, and a stream
	// of single events from becoming a batch for each: a batch costs the database,
	// the broker and the consumers about the same for one event as for a hundred.
	minPoll = 10 * time.Millisecond
	// restAfterFault is how long partitions rest when the database did not answer.
	restAfterFault = 250 * time.Millisecond
)

// dispatch sends batches until ctx ends, and returns when all of them are settled.
func (s *Subscriber) dispatch(ctx context.Context, out chan<- *message.Message) {
	slots := make(chan struct{}, s.MaxInFlight)
	var batches sync.WaitGroup
	defer batches.Wait()
	poll := time.NewTimer(0)
	defer poll.Stop()
	var polled time.Time
	stale, urgent := false, false // there may be more than what was seen; somebody's batch led to it
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			stale = true
		case <-s.Wake:
			stale = true
		case <-s.Followed:
			stale, urgent = true, true
		case <-s.leases.handed:
			stale = true
		case <-s.freed:
		}
		s.fill(ctx, slots, &batches, out)
		if !stale || len(slots) == cap(slots) && time.Since(polled) < pollHeads {
			continue // what is known already fills the slots; a freed one comes here again
		}
		if early := minPoll - time.Since(polled); early > 0 && !urgent {
			poll.Reset(early)
			continue
		}
		s.lookAtHeads(ctx)
		stale, urgent, polled = false, false, time.Now()
		poll.Reset(pollHeads)
		s.fill(ctx, slots, &batches, out)
	}
}

// fill starts batches while there are free slots and idle partitions with work.
func (s *Subscriber) fill(ctx context.Context, slots chan struct{}, batches *sync.WaitGroup, out chan<- *message.Message) {
	for len(slots) < cap(slots) {
		spans := s.held.choose(time.Now(), s.MaxEvents)
		if len(spans) == 0 {
			return
		}
		slots <- struct{}{}
		batches.Go(func() {
			defer hint(s.freed)
			defer func() { <-slots }()
			s.carry(ctx, spans, out)
		})
	}
}

// One query for all partitions: what is appended, and whether any lease is free.
const headsSQL = `SELECT h.partition, h.position, c.owner IS NULL OR c.lease_until < now(), h.epoch, is_server_life(h.timeline, h.started_at)
 FROM log_heads h JOIN relay_cursors c USING (partition)`

func (s *Subscriber) lookAtHeads(ctx context.Context) {
	rows, err := s.Pool.Query(ctx, headsSQL)
	if err != nil {
		return // the lease loop tells of a database that is away
	}
	defer rows.Close()
	for rows.Next() {
		var partition int16
		var head int64
		var loose, living bool
		var epoch int32
		if err := rows.Scan(&partition, &head, &loose, &epoch, &living); err != nil {
			return
		}
		if loose {
			hint(s.leases.kick)
		}
		s.held.seen(partition, head, epoch, living)
	}
}
