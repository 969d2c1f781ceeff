package recent

import (
	"slices"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// cacheTest is a Cache with two readers of one partition: one of verdicts, one of verdicts and dead letters.
type cacheTest struct {
	*testing.T
	*Cache
	verdicts, letters *Reader
}

func newCacheTest(t *testing.T) cacheTest {
	r := New()
	return cacheTest{t, r, r.Reader(0, []events.Subject{events.UsageValidated}),
		r.Reader(0, []events.Subject{events.UsageValidated, events.AggregationFailed})}
}

// put offers an event of a subject at each position.
func (x cacheTest) put(subject events.Subject, numbers ...int64) {
	for _, n := range numbers {
		e := eventAt(n, epochOf7, 100)
		e.Subject = subject
		x.Put(held(e))
	}
}

// reads expects the events of a stretch; nil: it has to be read from the database.
func (x cacheTest) reads(r *Reader, after, upTo int64, limit int, want []int64) {
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
	x.counts(x)
}

func TestAReaderGetsTheEventsOfItsSubjects(t *testing.T) {
	x := newCacheTest(t)
	x.put(events.UsageRecorded, 1, 2)
	x.put(events.UsageValidated, 3, 4)
	x.put(events.AggregationFailed, 5)
	x.put(events.UsageRecorded, 6)
	x.reads(x.verdicts, 0, 6, 10, []int64{3, 4})
	x.reads(x.verdicts, 0, 6, 1, []int64{3})
	x.reads(x.verdicts, 3, 4, 10, []int64{4})
	x.reads(x.letters, 0, 6, 10, []int64{3, 4, 5})
	if x.reads(x.verdicts, 5, 6, 10, []int64{}); len(x.partitions[followed].queue) != 6 {
		t.Errorf("%d entries are held, although a reader has read none of them", len(x.partitions[followed].queue))
	}
	if x.reads(x.letters, 4, 6, 10, []int64{5}); len(x.partitions[followed].queue) != 2 {
		t.Errorf("%d entries are held, want the two behind both readers", len(x.partitions[followed].queue))
	}
}

// Positions are dense: a missing one is an event of another process, or one that is offered later.
func TestAStretchWithAMissingEventIsReadFromTheDatabase(t *testing.T) {
	x := newCacheTest(t)
	x.put(events.UsageValidated, 1, 2, 4)
	x.reads(x.verdicts, 0, 4, 10, nil)
	x.reads(x.verdicts, 0, 4, 2, []int64{1, 2})
	x.reads(x.verdicts, 0, 5, 10, nil)
	x.reads(x.verdicts, 3, 4, 10, []int64{4})
	x.put(events.UsageValidated, 3, 2)
	x.reads(x.verdicts, 0, 4, 10, []int64{1, 2, 3, 4})
	x.put(events.UsageValidated, 4+maxGap+2) // far ahead: the older events are dropped
	x.reads(x.verdicts, 0, 4, 10, nil)
	x.reads(x.verdicts, 4+maxGap+1, 4+maxGap+2, 10, []int64{4 + maxGap + 2})
}

// An event that a failover has lost has the position of another one, in the next epoch.
func TestP4_EventsOfAnEarlierEpochAreNotRead(t *testing.T) {
	x := newCacheTest(t)
	x.put(events.UsageValidated, 1, 2, 3)
	later := held(events.Envelope{Position: events.Position{Partition: followed, Number: 3}, Epoch: epochOf7 + 1,
		Subject: events.UsageValidated})
	stretch := events.Stretch{Partition: followed, After: 0, UpTo: 3}
	if list, ok := x.verdicts.Stretch(nil, stretch, epochOf7+1, 10); ok || list != nil {
		t.Errorf("the next epoch reads %d events of the last one", len(list))
	}
	x.Put(later)
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
	x := newCacheTest(t)
	const large = 100 << 10
	for n := int64(1); n <= 3*maxBytes/large; n++ {
		e := eventAt(n, epochOf7, large)
		e.Subject = events.UsageValidated
		if n%3 == 0 {
			e.Position.Partition++ // with a gap of two after each
		}
		x.Put(held(e))
		if x.Cache.bytes > maxBytes {
			t.Fatalf("%d bytes after event %d, want at most %d", x.Cache.bytes, n, maxBytes)
		}
		if filled := len(x.Filled()) == 1; filled != (n > maxBytes/2/large) {
			t.Fatalf("hinted: %t, after %d events", filled, n)
		}
	}
	last := x.partitions[followed].first + int64(len(x.partitions[followed].queue)) - 1
	x.reads(x.letters, last-1, last, 10, []int64{last})
	x.reads(x.letters, 0, 2, 10, nil)
}

// topicTest is a Cache with a consumer of usage.raw, which holds every second position of the partition.
type topicTest struct {
	*testing.T
	*Cache
	raw   *Reader
	epoch int32
}

func newTopicTest(t *testing.T) *topicTest {
	r := New()
	return &topicTest{t, r, r.Reader(events.TopicUsageRaw, nil), epochOf7}
}

// offer offers an event at an odd position, and checks whether the consumer is notified of it.
func (x *topicTest) offer(n int64, want bool) {
	x.Helper()
	e := eventAt(n, x.epoch, 100)
	e.Subject, e.Previous = events.UsageRecorded, max(n-2, 0)
	if got := x.Put(held(e)) == 1; got != want {
		x.Errorf("notified of the event at %d: %t, want %t", n, got, want)
	}
}

// reach moves the checkpoint, and checks up to which position the consumer is notified of events then; 0: of no event.
func (x *topicTest) reach(n, ahead int64) {
	x.Helper()
	x.raw.Reached(events.Position{Partition: followed, Number: n}, x.epoch)
	x.ahead(ahead)
}

func (x *topicTest) ahead(want int64) {
	x.Helper()
	var got int64
	for _, p := range x.raw.Ahead() {
		got = p.Number
	}
	if got != want {
		x.Errorf("notified of events up to %d, want %d", got, want)
	}
	if hinted := len(x.raw.Ready()) == 1; want > 0 && !hinted {
		x.Error("there is no hint")
	}
}

// reads expects the events of a stretch; nil: it has to be read from the database.
func (x *topicTest) reads(after, upTo int64, limit int, want ...int64) {
	x.Helper()
	list, ok := x.raw.Stretch(nil, events.Stretch{Partition: followed, After: after, UpTo: upTo}, x.epoch, limit)
	var got []int64
	for _, e := range list {
		got = append(got, e.Position.Number)
	}
	if ok != (want != nil) || !slices.Equal(got, want) {
		x.Errorf("the stretch (%d, %d] has %d in memory, %t, want %d", after, upTo, got, ok, want)
	}
}

// A consumer of a topic is notified of the events that follow its checkpoint without a gap: each names the one before it on the topic.
func TestP2_AConsumerOfATopicIsToldOfWhatFollows(t *testing.T) {
	x := newTopicTest(t)
	x.offer(1, false) // before its first checkpoint
	x.reach(1, 0)
	x.offer(3, true)
	x.offer(5, true)
	x.ahead(5)
	x.reads(1, 5, 10, 3, 5)
	x.reads(1, 5, 1, 3)
	x.reads(0, 5, 10) // 1 is not held
	x.reach(3, 5)
	x.reach(5, 0)
	x.offer(9, false) // another process appended 7
	x.offer(11, false)
	x.ahead(0)
	x.reads(5, 11, 10)
	x.reach(7, 11)
	x.reads(7, 11, 10, 9, 11)
	x.offer(15, false)
	x.offer(13, true) // its commit was earlier
	x.ahead(15)
	x.reads(11, 15, 10, 13, 15)
	x.reads(11, 17, 10) // the end of it is missing
	x.reach(15, 0)
	if n := len(x.partitions[followed].queue); n != 0 {
		t.Errorf("%d entries are held, although the consumer has read all", n)
	}
}

// The events of other topics between those of a consumer make no gap, whether this process has them or not.
func TestP2_OtherTopicsMakeNoGap(t *testing.T) {
	x := newTopicTest(t)
	x.reach(1, 0)
	e := eventAt(4, epochOf7, 100)
	e.Subject = events.UsageValidated
	x.offer(3, true)
	if x.Put(held(e)) != 0 {
		t.Error("a consumer is notified of an event of another topic")
	}
	x.offer(5, true)
	x.offer(7, true)
	x.reads(1, 7, 10, 3, 5, 7)
}

// After a failover positions may name other events: no event of the ended epoch is notified, read or taken for passed.
func TestP2_NothingOfAnEndedEpochIsTold(t *testing.T) {
	x := newTopicTest(t)
	at := func(n int64) events.RecordPosition {
		return events.RecordPosition{Position: events.Position{Partition: followed, Number: n}, Epoch: x.epoch}
	}
	x.reach(1, 0)
	x.offer(3, true)
	x.epoch++
	x.offer(3, false) // the log lost the first one
	x.ahead(0)
	x.reach(1, 0) // it was not held for a consumer that had left
	if !x.raw.Passed(at(1)) || x.raw.Passed(at(3)) {
		t.Error("a record at the checkpoint is passed, and no other")
	}
	x.reach(3, 0)
	x.epoch--
	x.offer(5, false)
	x.raw.Reached(at(5).Position, x.epoch) // read before the epoch ended
	if x.raw.Passed(at(3)) || x.raw.Passed(at(5)) {
		t.Error("a record of the ended epoch is passed")
	}
	x.epoch++
	x.offer(5, true)
	x.epoch++
	x.reach(3, 0)
	x.reads(3, 5, 10)
}

// A consumer that leaves a partition to another instance is notified of no event there, and needs no memory.
func TestAConsumerIsToldOnlyWhereItFollows(t *testing.T) {
	x := newTopicTest(t)
	x.reach(1, 0)
	x.offer(3, true)
	x.raw.Leave(followed)
	x.ahead(0)
	x.offer(5, false)
	if got := x.raw.Follows([]int16{followed}); len(got) != 0 {
		t.Errorf("it follows %v", got)
	}
	x.reach(5, 0)
	x.offer(7, true)
	if got := x.raw.Follows([]int16{followed, followed + 1}); !slices.Equal(got, []int16{followed}) {
		t.Errorf("it follows %v", got)
	}
}
