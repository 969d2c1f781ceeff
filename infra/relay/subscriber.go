package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
	"github.com/meterplex/meterplex/infra/watermill"
)

// Subscriber is the log as a Watermill subscriber. A message is one batch: records from one or
// more leased partitions. Several messages may be in flight, but never two of the same partition. Ack
// moves the cursors; the move is refused if the lease was lost. After Nack the same batch is sent again
// after a pause.
type Subscriber struct {
	*Relay
	leases *leases
	held   *holdings
	freed  loop.Hint    // a batch ended
	took   atomic.Int64 // duration of the last batch, in nanoseconds
	open   watermill.Subscriptions

	begun                    retries.Start
	faultLog, failureRecords everySecond // rate limits
}

var _ message.Subscriber = (*Subscriber)(nil)

func newSubscriber(r *Relay) *Subscriber {
	l := newLeases(r)
	return &Subscriber{Relay: r, leases: l, held: l.held, freed: loop.NewHint(), begun: retries.Begin()}
}

// Subscribe starts a stream of batches. The topic only names it. A second stream would only share the
// batches of the first.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.open.Start(ctx, topic, s.dispatch)
}

// Close ends the streams. It waits up to CloseGrace for the batches under way.
func (s *Subscriber) Close() error { return s.open.Close() }

const (
	// pollHeads bounds the delay until new events are found without a hint. An idle relay that receives
	// hints polls every watermill.HintedEvery.
	pollHeads = 50 * time.Millisecond
	// pollInMemory is the delay of events that consumers of this process hold already.
	pollInMemory = 100 * time.Millisecond
	// minPoll bounds the rate of queries under many hints, and collects single events into one batch: a
	// batch of one event costs the database, the broker and the consumers about as much as a batch of a
	// hundred. On a busy machine, where batches take longer, the next one waits as long as the last one took,
	// up to pollHeads.
	minPoll = 10 * time.Millisecond
	// restAfterFault is how long partitions rest after a database failure.
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
	// stale: the log may have grown since the last poll; urgent: by follow-ups; later: by events that
	// consumers of this process have already.
	stale, urgent, later := false, false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			stale = stale || !later
		case <-s.Wake:
			stale = true
		case <-s.Followed:
			stale, urgent = true, true
		case <-s.Later:
			later = true
		case <-s.leases.handed:
			stale = true
		case <-s.freed:
		}
		s.fill(ctx, slots, &batches, out)
		if !stale && !later || len(slots) == cap(slots) && time.Since(polled) < pollHeads {
			continue // the known backlog fills the slots; a freed slot runs this loop again
		}
		pace := pollInMemory
		if stale {
			pace = min(max(minPoll, time.Duration(s.took.Load())), pollHeads)
		}
		if early := pace - time.Since(polled); early > 0 && !urgent {
			poll.Reset(early)
			continue
		}
		s.readHeads(ctx)
		stale, urgent, later, polled = false, false, false, time.Now()
		poll.Reset(s.untilPoll())
		s.fill(ctx, slots, &batches, out)
	}
}

// untilPoll returns the time until the heads are polled without a hint.
func (s *Subscriber) untilPoll() time.Duration {
	if s.Hinted != nil && s.Hinted() && s.held.idle() {
		return s.Ticks.Until(watermill.HintedEvery)
	}
	return pollHeads
}

// fill starts batches while there are free slots and idle partitions with unpublished events.
func (s *Subscriber) fill(ctx context.Context, slots chan struct{}, batches *sync.WaitGroup, out chan<- *message.Message) {
	for len(slots) < cap(slots) {
		spans := s.held.choose(time.Now(), s.MaxEvents)
		if len(spans) == 0 {
			return
		}
		slots <- struct{}{}
		batches.Go(func() {
			defer s.freed.Notify()
			defer func() { <-slots }()
			began := time.Now()
			s.carry(ctx, spans, out)
			s.took.Store(int64(time.Since(began)))
		})
	}
}

// headsSQL reads all partitions in one query: the head, and whether the lease is free.
const headsSQL = `SELECT h.partition, h.position, c.owner IS NULL OR c.lease_until < now(), h.epoch, is_server_life(h.timeline,
	h.started_at)
 FROM log_heads h JOIN relay_cursors c USING (partition)`

// headsTimeout bounds a look at the heads: a server that does not answer is doubted, and may have been replaced.
const headsTimeout = 5 * time.Second

// readHeads reads the heads. While they cannot be read, no record is published: another server may be primary. The lease
// loop reports that the database is unreachable.
func (s *Subscriber) readHeads(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, headsTimeout)
	defer cancel()
	if s.readEachHead(ctx) != nil {
		s.held.doubtLife()
	}
}

func (s *Subscriber) readEachHead(ctx context.Context) error {
	before := s.held.fences()
	rows, err := s.Pool.Query(ctx, headsSQL)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var partition int16
		var head int64
		var free, sameLife bool
		var epoch int32
		if err := rows.Scan(&partition, &head, &free, &epoch, &sameLife); err != nil {
			return err
		}
		if free {
			s.leases.kick.Notify()
		}
		fence := s.held.setHead(partition, head, epoch, sameLife)
		if fence != before[partition] {
			fence = 0 // the head may have been read before the lease began
		}
		if s.Recent != nil {
			s.Recent.Follow(partition, fence, epoch, head)
		}
	}
	return rows.Err()
}
