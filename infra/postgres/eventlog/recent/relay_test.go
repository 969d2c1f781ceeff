package recent

import (
	"slices"
	"testing"

	"github.com/meterplex/meterplex/events"
)

const (
	followed = 3  // a partition
	fence    = 7  // of its lease
	epochOf7 = 11 // of its head
)

// relayTest is a Cache whose relay follows one partition from position 10 on.
type relayTest struct {
	*testing.T
	*Cache
	relay *Reader
}

func newRelayTest(t *testing.T) relayTest {
	r := New()
	x := relayTest{t, r, r.Relay()}
	x.relay.Follow(followed, fence, epochOf7, 10)
	return x
}

func eventAt(number int64, epoch int32, payload int) events.Envelope {
	return events.Envelope{Position: events.Position{Partition: followed, Number: number}, Epoch: epoch, Payload: make([]byte, payload)}
}

// held returns events as a Cache holds them.
func held(list ...events.Envelope) (all []*events.Envelope) {
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}

func (x relayTest) put(numbers ...int64) {
	for _, n := range numbers {
		x.Put(held(eventAt(n, epochOf7, 100)))
	}
}

func (x relayTest) takes(after, upTo int64, want ...int64) {
	x.Helper()
	x.takesWithin(1<<20, after, upTo, want...)
}

func (x relayTest) takesWithin(room int, after, upTo int64, want ...int64) {
	x.Helper()
	var got []int64
	for _, e := range x.relay.Take(followed, fence, after, upTo, room) {
		got = append(got, e.Position.Number)
	}
	if !slices.Equal(got, want) {
		x.Errorf("the stretch (%d, %d] begins with %d in memory, want %d", after, upTo, got, want)
	}
	x.counts(x)
}

// counts checks the bytes that are counted.
func (c *Cache) counts(t testing.TB) {
	t.Helper()
	bytes := 0
	for i := range c.partitions {
		sum := 0
		for _, e := range c.partitions[i].queue {
			sum += entryBytes
			if e != nil && e != &c.passed {
				sum += memoryOf(e)
			}
		}
		if bytes += sum; sum != c.partitions[i].bytes {
			t.Errorf("%d bytes are counted in partition %d, %d are held", c.partitions[i].bytes, i, sum)
		}
	}
	if bytes != c.bytes {
		t.Errorf("%d bytes are counted, %d are held", c.bytes, bytes)
	}
}

func TestTheRelayTakesEachEventOnce(t *testing.T) {
	x := newRelayTest(t)
	x.put(11, 12, 13, 14)
	x.takes(10, 12, 11, 12)
	x.takes(10, 12) // read again, e.g. after a failure
	x.put(11, 12)
	x.takes(10, 12)
	x.takes(11, 13) // 13 follows an event that is read from the database, and so is read with it
	x.takes(12, 13)
	x.takes(13, 20, 14)
	if x.bytes != 0 {
		t.Errorf("%d bytes are left of events that were taken", x.bytes)
	}
}

// An event that the relay has taken, or had to read from the database, may be withheld by now: after a rewind it is not taken from
// memory, although a consumer still needs it.
func TestP2_AnEventThatIsReadAgainComesFromTheDatabase(t *testing.T) {
	x := newRelayTest(t)
	x.Cache.Reader(0, []events.Subject{events.UsageValidated}) // has read no event
	x.put(11, 12, 13, 14)
	x.takes(10, 12, 11, 12)
	x.relay.Follow(followed, fence+1, epochOf7, 13) // the cursor moved back, and the lease ended
	for after := int64(10); after < 13; after++ {
		if got := x.relay.Take(followed, fence+1, after, 13, 1<<20); len(got) != 0 {
			t.Errorf("behind %d, %d events are taken again", after, len(got))
		}
	}
	if got := x.relay.Take(followed, fence+1, 13, 14, 1<<20); len(got) != 1 || got[0].Position.Number != 14 {
		t.Errorf("behind the head of the lease: %v", got)
	}
	x.counts(t)
}

func TestTheRelayTakesUpToTheFirstMissingEvent(t *testing.T) {
	x := newRelayTest(t)
	x.put(11, 12, 14, 15)
	x.takes(10, 15, 11, 12)
	x.takes(12, 15) // the caller reads 13 to 15 from the database
	x.put(13, 14, 16)
	x.takes(12, 15)
	x.takes(15, 16, 16)
}

// The relay may read the head before the events of that commit are put in.
func TestTheRelayTakesEventsBehindThoseTaken(t *testing.T) {
	x := newRelayTest(t)
	x.put(11, 12, 14)
	x.takes(10, 14, 11, 12)
	x.put(13)
	x.takes(12, 14, 13, 14)
}

func TestTheRelayTakesEventsOfConcurrentCommitsInOrder(t *testing.T) {
	x := newRelayTest(t)
	x.put(13, 14, 11, 15, 12)
	x.takes(10, 20, 11, 12, 13, 14, 15)
}

func TestTheRelayTakesOnlyEventsBehindTheHeadOfItsLease(t *testing.T) {
	x := newRelayTest(t)
	x.put(9, 10)
	x.takes(8, 10)
	x.Cache.Reader(0, []events.Subject{0})                                  // a consumer needs them all
	x.Put(held(eventAt(11, epochOf7-1, 100), eventAt(11, epochOf7+1, 100))) // the lease is of the epoch between them
	x.takes(10, 20)
	x.relay.Follow(followed, fence+1, epochOf7, 10) // its head was read before the epoch ended
	if got := x.relay.Take(followed, fence+1, 10, 20, 1<<20); got != nil {
		t.Errorf("a lease of the ended epoch takes %d events", len(got))
	}

	x = newRelayTest(t)
	x.relay.Follow(followed, 0, 0, 0)
	x.put(11) // no event is made, although its head is read later
	x.relay.Follow(followed, fence, epochOf7, 10)
	x.put(12)
	x.takes(10, 12)

	x = newRelayTest(t)
	x.put(11, 12)
	x.relay.Follow(followed, fence, epochOf7, 12) // as before
	if got := x.relay.Take(followed, fence-1, 10, 12, 1<<20); got != nil {
		t.Errorf("an earlier lease takes %d events", len(got))
	}
	x.relay.Follow(followed, fence+1, epochOf7, 12) // another relay had the lease meanwhile: it may have withheld the events
	if got := x.relay.Take(followed, fence+1, 10, 12, 1<<20); got != nil || x.bytes != 0 {
		t.Errorf("the next lease takes %d events of an earlier one; %d bytes are left", len(got), x.bytes)
	}
}

func TestNoEventIsMadeThatNoReaderTakes(t *testing.T) {
	x := newRelayTest(t)
	x.put(11)
	x.relay.Follow(followed, 0, 0, 0)
	for _, r := range []*Cache{nil, New(), x.Cache} {
		e := eventAt(12, epochOf7, 100)
		r.Offer(e.RecordPosition(), e.Subject.Topic(), e.Subject, func() *events.Envelope {
			t.Error("an event was made that no reader takes")
			return &e
		})
	}
	x.counts(t)
}

// A relay that stands still, e.g. without a broker, keeps no more than the bound, and takes no event from a consumer that keeps up.
func TestAConsumerReadsFromMemoryBesideARelayThatStandsStill(t *testing.T) {
	x := newRelayTest(t)
	raw := x.Cache.Reader(events.TopicUsageRaw, nil)
	const payload = 10 << 10
	raw.Reached(events.Position{Partition: followed, Number: 10}, epochOf7)
	last := int64(10)
	for ; last < 3*maxBytes/payload; last++ {
		e := eventAt(last+1, epochOf7, payload)
		e.Subject, e.Previous = events.UsageRecorded, last
		if x.Put(held(e)) != 1 || x.bytes > maxBytes {
			t.Fatalf("the consumer is not notified of event %d, or %d bytes are held", last+1, x.bytes)
		}
		if list, ok := raw.Stretch(nil, events.Stretch{Partition: followed, After: last, UpTo: last + 1}, epochOf7, 10); !ok ||
			len(list) != 1 {
			t.Fatalf("the consumer has %d events in memory behind %d", len(list), last)
		}
		raw.Reached(events.Position{Partition: followed, Number: last + 1}, epochOf7)
	}
	x.counts(t)
	x.takes(10, 20) // dropped: the database has them
	if first := x.partitions[followed].first; first > last || len(x.relay.Take(followed, fence, first-1, last, 1<<40)) != int(last-first+1) {
		t.Errorf("the relay does not take the events from %d to %d", first, last)
	}
}

func TestTheRelayLeavesEventsThatABatchHasNoRoomFor(t *testing.T) {
	x := newRelayTest(t)
	x.put(11, 12, 13)
	x.takesWithin(150, 10, 13, 11, 12)
	x.takesWithin(150, 12, 13, 13)
}
