package newest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/meterplex/meterplex/events"
)

const (
	followed = 3  // a partition
	fence    = 7  // of its lease
	epochOf7 = 11 // of its head
)

// tailTest is a tail that follows one partition from position 10 on.
type tailTest struct {
	*testing.T
	*Tail
}

func newTailTest(t *testing.T) tailTest {
	tail := NewTail()
	tail.Follow(followed, fence, epochOf7, 10)
	return tailTest{t, tail}
}

func eventAt(number int64, epoch int32, payload int) events.Envelope {
	return events.Envelope{Position: events.Position{Partition: followed, Number: number}, Epoch: epoch, Payload: make([]byte, payload)}
}

// held returns events as a tail holds them.
func held(list ...events.Envelope) (all []*events.Envelope) {
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}

func (t tailTest) put(numbers ...int64) {
	for _, n := range numbers {
		t.Put(held(eventAt(n, epochOf7, 100)))
	}
}

func (t tailTest) takes(after, upTo int64, want ...int64) {
	t.Helper()
	t.takesWithin(1<<20, after, upTo, want...)
}

func (t tailTest) takesWithin(room int, after, upTo int64, want ...int64) {
	t.Helper()
	var got []int64
	for _, e := range t.Take(followed, fence, after, upTo, room) {
		got = append(got, e.Position.Number)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the stretch (%d, %d] begins with %d in the tail, want %d", after, upTo, got, want)
	}
	if t.bytes != t.parts[followed].bytes || t.bytes != len(t.parts[followed].queue)*(heldEvent+100) {
		t.Errorf("%d bytes, %d of the partition, for %d events", t.bytes, t.parts[followed].bytes, len(t.parts[followed].queue))
	}
}

func TestATailGivesEachEventOnce(t *testing.T) {
	x := newTailTest(t)
	x.put(11, 12, 13, 14)
	x.takes(10, 12, 11, 12)
	x.takes(10, 12) // read again, e.g. after a failure
	x.put(11, 12)
	x.takes(10, 12)
	x.takes(11, 13) // 13 follows an event that is read from the database, and so is read with it
	x.takes(12, 13)
	x.takes(13, 20, 14)
}

func TestATailEndsAtTheFirstMissingEvent(t *testing.T) {
	x := newTailTest(t)
	x.put(11, 12, 14, 15)
	x.takes(10, 15, 11, 12)
	x.takes(12, 15) // the caller reads 13 to 15 from the database
	x.put(13, 14, 16)
	x.takes(12, 15)
	x.takes(15, 16, 16)
}

// The relay may read the head before the events of that commit are put in.
func TestATailAcceptsEventsBehindThoseTaken(t *testing.T) {
	x := newTailTest(t)
	x.put(11, 12, 14)
	x.takes(10, 14, 11, 12)
	x.put(13)
	x.takes(12, 14, 13, 14)
}

func TestATailSortsTheEventsOfConcurrentCommits(t *testing.T) {
	x := newTailTest(t)
	x.put(13, 14, 11, 15, 12)
	x.takes(10, 20, 11, 12, 13, 14, 15)
}

func TestATailHoldsOnlyEventsBehindTheHeadOfALease(t *testing.T) {
	x := newTailTest(t)
	x.put(9, 10)
	x.Put(held(eventAt(11, epochOf7+1, 100), eventAt(11, epochOf7-1, 100)))
	x.takes(8, 20)
	x.takes(10, 20)

	x = newTailTest(t)
	x.put(11, 12)
	x.Follow(followed, fence, epochOf7, 12) // as before
	if got := x.Take(followed, fence-1, 10, 12, 1<<20); got != nil {
		t.Errorf("an earlier lease takes %d events", len(got))
	}
	x.Follow(followed, fence+1, epochOf7, 11) // another relay had the lease meanwhile: it may have withheld the events
	if got := x.Take(followed, fence+1, 10, 12, 1<<20); got != nil || x.bytes != 0 {
		t.Errorf("the next lease takes %d events of an earlier one; %d bytes are left", len(got), x.bytes)
	}
}

func TestATailWithoutALeaseMakesNoEvents(t *testing.T) {
	x := newTailTest(t)
	x.put(11)
	x.Follow(followed, 0, 0, 0)
	for _, tail := range []*Tail{nil, NewTail(), x.Tail} {
		e := eventAt(12, epochOf7, 100)
		tail.Offer(e.Place(), func() *events.Envelope { t.Error("an event was made that no relay takes"); return &e })
		if tail.Followed() {
			t.Error("a tail without a lease is followed")
		}
	}
	if x.bytes != 0 {
		t.Errorf("%d bytes are left", x.bytes)
	}
}

func TestATailIsBounded(t *testing.T) {
	tail := NewTail()
	const payload = 2000
	for p := range int16(events.Partitions) {
		tail.Follow(p, fence, epochOf7, 0)
		for n := range int64(maxTailPart / payload) {
			e := eventAt(n+1, epochOf7, payload)
			e.Position.Partition = p
			tail.Put(held(e))
		}
		if tail.parts[p].bytes > maxTailPart+payload+heldEvent {
			t.Fatalf("a partition has %d bytes", tail.parts[p].bytes)
		}
	}
	if most := maxTail + payload + heldEvent; tail.bytes > most || tail.bytes < maxTail {
		t.Fatalf("%d bytes, want %d to %d", tail.bytes, maxTail, most)
	}
	for p := range int16(events.Partitions) {
		tail.Take(p, fence, 0, 1<<40, 1<<40)
	}
	if tail.bytes != 0 {
		t.Fatalf("%d bytes for no events", tail.bytes)
	}
}

func TestAFullTailHoldsEventsThatFollowEachOther(t *testing.T) {
	x := newTailTest(t)
	last := int64(10)
	for !x.parts[followed].full {
		last++
		x.put(last)
	}
	end := x.parts[followed].queue[len(x.parts[followed].queue)-1].Position.Number
	if n := len(x.Take(followed, fence, 10, end-1, 1<<40)); n != int(end-11) {
		t.Fatalf("%d events were taken of %d", n, end-11)
	}
	x.put(last + 1) // there is room again, but it would be behind a gap
	x.takes(end-1, last+2, end)
	x.put(last+3, last+4)
	x.takes(last+2, last+4, last+3, last+4)
}

func TestATailKeepsEventsThatABatchHasNoRoomFor(t *testing.T) {
	x := newTailTest(t)
	x.put(11, 12, 13)
	x.takesWithin(150, 10, 13, 11, 12)
	x.takesWithin(150, 12, 13, 13)
}

func ExampleTail() {
	tail := NewTail()
	tail.Follow(3, 7, 11, 100) // the relay has leased partition 3 with fence 7, and has read the head 100
	e := events.Envelope{Position: events.Position{Partition: 3, Number: 101}, Epoch: 11}
	tail.Offer(e.Place(), func() *events.Envelope { return &e }) // after COMMIT
	fmt.Println(len(tail.Take(3, 7, 100, 101, 4<<20)), len(tail.Take(3, 7, 100, 101, 4<<20)))
	// Output: 1 0
}
