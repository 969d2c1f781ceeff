package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/must"
)

func holdAll(backlog int64, renewed time.Time) *holdings {
	h := &holdings{fresh: time.Second}
	for p := range int16(events.Partitions) {
		h.add([]*holding{{partition: p, fence: 1, head: backlog, sameLife: true, renewed: renewed}})
	}
	return h
}

func TestP2_NoRecordIsSentUnderAnUnsureLease(t *testing.T) {
	now := time.Now()
	h := holdAll(10, now)
	if !h.valid(span{partition: 3, fence: 1}, now) || h.valid(span{partition: 3, fence: 2}, now) {
		t.Error("a lease is compared by more than its fence")
	}
	later := now.Add(time.Second)
	if h.valid(span{partition: 3, fence: 1}, later) || len(h.choose(later, 100)) != 0 {
		t.Error("a lease that was not renewed for half its time is still used")
	}
	h.renewed(later, h.list(), []span{{partition: 3, fence: 1}})
	if got := h.choose(later, 100); len(got) != 1 || got[0].partition != 3 || len(h.list()) != 1 {
		t.Errorf("after a renewal of partition 3 alone: %+v", got)
	}
}

func TestP10_NoPartitionIsInTwoBatchesAndNoneStarves(t *testing.T) {
	now := time.Now()
	h := holdAll(1<<40, now)
	carried := map[int16]int64{}
	for range 64 {
		a, b := h.choose(now, 2000), h.choose(now, 2000)
		seen := map[int16]bool{}
		for _, s := range append(a, b...) {
			if seen[s.partition] {
				t.Fatalf("partition %d is in two batches at once", s.partition)
			}
			seen[s.partition] = true
			carried[s.partition] += s.to - s.after
			h.update(s, func(p *holding) { p.cursor = s.to })
			h.free(s, 0)
		}
	}
	for p := range int16(events.Partitions) {
		if carried[p] == 0 {
			t.Errorf("partition %d starved", p)
		}
	}
	if len(h.choose(now.Add(-time.Hour), 2000)) != 0 {
		t.Error("a partition that rests was chosen")
	}
}

func TestRefusedEventIsTriedAlone(t *testing.T) {
	now := time.Now()
	h := holdAll(0, now)
	h.setHead(5, 100, 0, true)
	h.update(span{partition: 5, fence: 1}, func(p *holding) { p.cursor, p.tries = 41, 1 })
	got := h.choose(now, 2000)
	if len(got) != 1 || got[0].after != 41 || got[0].to != 42 {
		t.Errorf("chosen %+v, want event 42 alone", got)
	}
}

// After a failover that lost the newest events, cursors, heads and epochs in the database differ from those in
// memory.
func TestP3_AHoldingThatTheDatabaseDoesNotConfirmIsDropped(t *testing.T) {
	now := time.Now()
	const p = 3
	mine := span{partition: p, fence: 1}
	for name, c := range map[string]struct {
		learns func(h *holdings)
		keeps  bool
	}{
		"renewed at the same cursor": {func(h *holdings) { h.renewed(now, h.list(), []span{{partition: p, fence: 1, after: 50}}) }, true},
		"renewed at a cursor behind": {func(h *holdings) { h.renewed(now, h.list(), []span{{partition: p, fence: 1, after: 49}}) }, false},
		"the head of another epoch":  {func(h *holdings) { h.setHead(p, 60, 7, true) }, false},
		"the same epoch's head":      {func(h *holdings) { h.setHead(p, 60, 0, true) }, true},
	} {
		h := holdAll(100, now)
		h.update(mine, func(p *holding) { p.cursor = 50 })
		c.learns(h)
		if h.valid(mine, now) != c.keeps {
			t.Errorf("%s: the partition is kept %t", name, !c.keeps)
		}
	}
	h := holdAll(100, now)
	h.update(mine, func(p *holding) { p.cursor = 50 })
	h.setHead(p, 52, 0, true)
	for _, s := range h.choose(now, 10_000) {
		if s.partition == p && s.to != 52 {
			t.Errorf("a head that went back to 52: chosen up to %d", s.to)
		}
	}
	h = holdAll(100, now)
	h.setHead(p, 100, 0, false)
	for _, s := range h.choose(now, 10_000) {
		if s.partition == p {
			t.Error("published while the server is in another life than the epoch")
		}
	}
}

func TestSurplusPartitionsAreReleasedWhenIdle(t *testing.T) {
	now := time.Now()
	h := holdAll(1, now)
	busy := h.choose(now, 2000)
	if len(busy) != events.Partitions || len(h.shed(16)) != 0 {
		t.Fatal("a busy partition was handed back")
	}
	for _, s := range busy {
		h.free(s, 0)
	}
	if got := h.shed(16); len(got) != 16 || len(h.list()) != 16 {
		t.Errorf("handed back %d, kept %d", len(got), len(h.list()))
	}
}

func TestP3_AHoleInTheLogIsNotPassed(t *testing.T) {
	at := func(n int64) *events.Envelope {
		return &events.Envelope{Subject: events.UsageRecorded, Position: events.Position{Partition: 1, Number: n}, Payload: []byte("{}"),
			Vocabulary: events.CurrentVocabulary(), Residency: events.ResidencyUnspecified}
	}
	left := 1 << 20
	p := segment{}
	records, err := p.extend(nil, []*events.Envelope{at(1), at(2), at(4)}, &left, &codec.RecordWriter{})
	if !errors.Is(err, errHole) || len(records) != 0 || p.to != 2 {
		t.Errorf("%d records up to %d, %v", len(records), p.to, err)
	}
}

// A hole proves loss: each attempt that finds it is reported, also if it is not logged again.
func TestP3_EachHoleIsReported(t *testing.T) {
	found := 0
	s := &Subscriber{Relay: &Relay{Logger: slog.New(slog.DiscardHandler), Observe: Observe{Hole: func() { found++ }}.withDefaults()}}
	for range 3 {
		s.logFault(t.Context(), "cannot read the log", fmt.Errorf("position 17: %w", errHole))
	}
	s.logFault(t.Context(), "cannot read the log", errors.New("the connection was lost"))
	if found != 3 {
		t.Errorf("a hole that was found 3 times is reported %d times", found)
	}
}

// P3: while the heads cannot be read, another server may be primary: no record is published until they are read again.
func TestNothingIsPublishedWhileTheHeadsCannotBeRead(t *testing.T) {
	now := time.Now()
	h := holdAll(100, now)
	h.doubtLife()
	if got := h.choose(now, 10_000); len(got) != 0 {
		t.Errorf("%d spans of unknown heads", len(got))
	}
	h.setHead(3, 100, 0, true)
	if got := h.choose(now, 10_000); len(got) != 1 || got[0].partition != 3 {
		t.Errorf("after one head was read: %+v", got)
	}
}

// memoryOf has events by partition, and logOf all of them.
type (
	memoryOf map[int16][]events.Envelope
	logOf    struct {
		Log
		read []events.Stretch
	}
)

func (memoryOf) Follow(int16, int64, int32, int64) {}

func (t memoryOf) Take(partition int16, _, _, _ int64, _ int) (list []*events.Envelope) {
	for i := range t[partition] {
		list = append(list, &t[partition][i])
	}
	return list
}

func (l *logOf) ReadStretches(_ context.Context, stretches []events.Stretch, _ int) (list []events.Envelope, err error) {
	l.read = append(l.read, stretches...)
	for _, s := range stretches {
		list = append(list, numbered(s.Partition, s.After+1, s.UpTo, 1)...)
	}
	return list, nil
}

func numbered(partition int16, from, to int64, payload int) (list []events.Envelope) {
	for n := from; n <= to; n++ {
		list = append(list, events.Envelope{Position: events.Position{Partition: partition, Number: n}, Payload: make([]byte, payload)})
	}
	return list
}

func TestASpanEndsWhereTheMemoryEnds(t *testing.T) {
	log := &logOf{}
	s := newSubscriber((&Relay{Log: log, MaxBytes: 1000, Recent: memoryOf{1: numbered(1, 11, 13, 200), 3: numbered(3, 1, 2, 300),
		5: numbered(5, 1, 1, 1)}}).withDefaults())
	spans := []span{{partition: 1, after: 10, to: 13}, {partition: 2, after: 4, to: 9}, {partition: 3, after: 0, to: 8},
		{partition: 4, after: 6, to: 7}}
	first, err := s.first(t.Context(), spans)
	must.OK(t, err)
	// Partitions 1 and 3 fill the batch: partition 4 waits for the next one.
	if want := []events.Stretch{{Partition: 2, After: 4, UpTo: 9}}; !slices.Equal(log.read, want) {
		t.Errorf("read %v from the database, want %v", log.read, want)
	}
	for i, want := range []struct {
		events int
		to     int64
	}{{3, 13}, {5, 9}, {2, 2}, {0, 6}} {
		if sp := spans[i]; len(first[sp.partition]) != want.events || sp.to != want.to {
			t.Errorf("partition %d has %d events up to %d, want %d up to %d", sp.partition, len(first[sp.partition]), sp.to, want.events,
				want.to)
		}
	}
}

// publications counts calls of a publisher.
type publications int

func (n *publications) Publish(string, ...*message.Message) error { *n++; return nil }

func (*publications) Close() error { return nil }

// P2: an instance that is frozen between its read of a batch and its publication has old events in memory, while another publishes, and an
// erasure may end.
func TestP2_ABatchFrozenForLongerThanItsLeaseIsNotPublished(t *testing.T) {
	e := events.Envelope{Subject: events.UsageRecorded, Position: events.Position{Partition: 1, Number: 1}, Payload: []byte("{}"),
		Vocabulary: events.CurrentVocabulary(), Residency: events.ResidencyUnspecified}
	var published publications
	s := newSubscriber((&Relay{Publisher: &published, Recent: memoryOf{1: {e}}}).withDefaults())
	s.held.add([]*holding{{partition: 1, fence: 1, head: 1, sameLife: true, renewed: time.Now()}})
	b, err := s.read(t.Context(), s.held.choose(time.Now(), 10))
	must.OK(t, err)
	for _, c := range []struct {
		frozen time.Duration
		want   publications
	}{{s.LeaseTTL, 0}, {0, 1}} {
		s.held.update(b.segments[0].span, func(p *holding) { p.renewed = time.Now().Add(-c.frozen) })
		values, msg := b.message(t.Context())
		msg.SetContext(values)
		if err := s.publish(msg); published != c.want || c.want == 0 && !errors.Is(err, errUnsure) {
			t.Errorf("after %v: %d publications, %v", c.frozen, published, err)
		}
	}
}
