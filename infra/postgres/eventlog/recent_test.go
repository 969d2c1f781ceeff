package eventlog

import (
	"slices"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// recentTest is a Recent with two readers of one partition: one of verdicts, one of verdicts and dead letters.
type recentTest struct {
	*testing.T
	*Recent
	verdicts, letters *RecentReader
}

func newRecentTest(t *testing.T) recentTest {
	r := NewRecent()
	return recentTest{t, r, r.Reader([]events.Subject{events.UsageValidated}), r.Reader([]events.Subject{events.UsageValidated, events.AggregationFailed})}
}

// put offers an event of a subject at each position.
func (x recentTest) put(subject events.Subject, numbers ...int64) {
	for _, n := range numbers {
		e := eventAt(n, epochOf7, 100)
		e.Subject = subject
		Newest{Recent: x.Recent}.Put(held(e))
	}
}

// reads expects the events of a stretch; nil: it has to be read from the database.
func (x recentTest) reads(r *RecentReader, after, upTo int64, limit int, want []int64) {
	x.Helper()
	before := []events.Envelope{{}}
	list, ok := r.Stretch(before, events.Stretch{Partition: followed, After: after, UpTo: upTo}, epochOf7, limit)
	if ok != (want != nil) {
		x.Errorf("the stretch (%d, %d] is read from memory: %t, want %t", after, upTo, ok, want != nil)
	}
	var got []int64
	for _, e := range list[1:] {
		got = append(got, e.Position.Number)
	}
	if !slices.Equal(got, want) {
		x.Errorf("the stretch (%d, %d] has %d in memory, want %d", after, upTo, got, want)
	}
	bytes := 0
	for i := range x.parts {
		sum := 0
		for _, e := range x.parts[i].queue {
			sum += recentEntry
			if e != nil && e != &x.passed {
				sum += memoryOf(e)
			}
		}
		if bytes += sum; sum != x.parts[i].bytes {
			x.Errorf("%d bytes are counted in partition %d, %d are held", x.parts[i].bytes, i, sum)
		}
	}
	if bytes != x.Recent.bytes {
		x.Errorf("%d bytes are counted, %d are held", x.Recent.bytes, bytes)
	}
}

func TestAReaderGetsTheEventsOfItsSubjects(t *testing.T) {
	x := newRecentTest(t)
	x.put(events.UsageRecorded, 1, 2)
	x.put(events.UsageValidated, 3, 4)
	x.put(events.AggregationFailed, 5)
	x.put(events.UsageRecorded, 6)
	x.reads(x.verdicts, 0, 6, 10, []int64{3, 4})
	x.reads(x.verdicts, 0, 6, 1, []int64{3})
	x.reads(x.verdicts, 3, 4, 10, []int64{4})
	x.reads(x.letters, 0, 6, 10, []int64{3, 4, 5})
	if x.reads(x.verdicts, 5, 6, 10, []int64{}); len(x.parts[followed].queue) != 6 {
		t.Errorf("%d entries are held, although a reader has read none of them", len(x.parts[followed].queue))
	}
	if x.reads(x.letters, 4, 6, 10, []int64{5}); len(x.parts[followed].queue) != 2 {
		t.Errorf("%d entries are held, want the two behind both readers", len(x.parts[followed].queue))
	}
}

// Positions are dense: a missing one is an event of another process, or one that is offered later.
func TestAStretchWithAMissingEventIsReadFromTheDatabase(t *testing.T) {
	x := newRecentTest(t)
	x.put(events.UsageValidated, 1, 2, 4)
	x.reads(x.verdicts, 0, 4, 10, nil)
	x.reads(x.verdicts, 0, 4, 2, []int64{1, 2})
	x.reads(x.verdicts, 0, 5, 10, nil)
	x.reads(x.verdicts, 3, 4, 10, []int64{4})
	x.put(events.UsageValidated, 3, 2)
	x.reads(x.verdicts, 0, 4, 10, []int64{1, 2, 3, 4})
	x.put(events.UsageValidated, 4+maxRecentGap+2) // far ahead: the older events are dropped
	x.reads(x.verdicts, 0, 4, 10, nil)
	x.reads(x.verdicts, 4+maxRecentGap+1, 4+maxRecentGap+2, 10, []int64{4 + maxRecentGap + 2})
}

// An event that a failover has lost has the position of another one, in the next epoch.
func TestP4_EventsOfAnEarlierEpochAreNotRead(t *testing.T) {
	x := newRecentTest(t)
	x.put(events.UsageValidated, 1, 2, 3)
	later := held(events.Envelope{Position: events.Position{Partition: followed, Number: 3}, Epoch: epochOf7 + 1, Subject: events.UsageValidated})
	stretch := events.Stretch{Partition: followed, After: 0, UpTo: 3}
	if list, ok := x.verdicts.Stretch(nil, stretch, epochOf7+1, 10); ok || list != nil {
		t.Errorf("the next epoch reads %d events of the last one", len(list))
	}
	Newest{Recent: x.Recent}.Put(later)
	x.put(events.UsageValidated, 1, 2)
	if list, ok := x.verdicts.Stretch(nil, stretch, epochOf7+1, 10); ok || list != nil {
		t.Errorf("the next epoch reads %d events of the last one", len(list))
	}
	stretch.After = 2
	if list, ok := x.verdicts.Stretch(nil, stretch, epochOf7+1, 10); !ok || len(list) != 1 || list[0].Epoch != epochOf7+1 {
		t.Errorf("the next epoch reads %+v, %t", list, ok)
	}
	x.reads(x.verdicts, 2, 3, 10, nil)
}

func TestARecentIsBounded(t *testing.T) {
	x := newRecentTest(t)
	const large = 100 << 10
	for n := int64(1); n <= 3*maxRecent/large; n++ {
		e := eventAt(n, epochOf7, large)
		e.Subject = events.UsageValidated
		if n%3 == 0 {
			e.Position.Partition++ // with a gap of two after each
		}
		Newest{Recent: x.Recent}.Put(held(e))
		if x.Recent.bytes > maxRecent {
			t.Fatalf("%d bytes after event %d, want at most %d", x.Recent.bytes, n, maxRecent)
		}
		if filled := len(x.Filled()) == 1; filled != (n > maxRecent/2/large) {
			t.Fatalf("hinted: %t, after %d events", filled, n)
		}
	}
	last := x.parts[followed].first + int64(len(x.parts[followed].queue)) - 1
	x.reads(x.letters, last-1, last, 10, []int64{last})
	x.reads(x.letters, 0, 2, 10, nil)
}
