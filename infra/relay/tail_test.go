package relay_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay"
)

// countingLog counts the events that a relay reads from the database.
type countingLog struct {
	relay.Log
	read atomic.Int64
}

func (l *countingLog) Read(ctx context.Context, partition int16, after, upTo int64, limit int) ([]events.Envelope, error) {
	list, err := l.Log.Read(ctx, partition, after, upTo, limit)
	l.read.Add(int64(len(list)))
	return list, err
}

func (l *countingLog) ReadStretches(ctx context.Context, stretches []events.Stretch, limit int) ([]events.Envelope, error) {
	list, err := l.Log.ReadStretches(ctx, stretches, limit)
	l.read.Add(int64(len(list)))
	return list, err
}

func TestEventsOfTheRelaysProcessAreNotReadFromTheDatabase(t *testing.T) {
	w := newRelayFixture(t)
	r := w.relay("one")
	counted := &countingLog{Log: w.log}
	r.Log = counted
	stop := w.start(r)
	all := tenantsOfAllPartitions()
	// The relay may find a commit before its events are in the tail. It then reads those of that round.
	w.until("a round is published unread", func() bool {
		before := counted.read.Load()
		w.appendUsage(20, all...)
		w.awaitDrained()
		return counted.read.Load() == before
	})
	stop()
	if n := w.checkTopic(events.TopicUsageRaw); n > 0 {
		t.Logf("%d records were sent twice", n)
	}
}
