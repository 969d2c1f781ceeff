package relay

import (
	"context"
	"slices"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// tailOf has events by partition, and logOf all of them.
type (
	tailOf map[int16][]events.Envelope
	logOf  struct {
		Log
		read []events.Stretch
	}
)

func (tailOf) Follow(int16, int64, int32, int64) {}

func (t tailOf) Take(partition int16, _, _, _ int64, _ int) (list []*events.Envelope) {
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

func TestASpanEndsWhereTheTailEnds(t *testing.T) {
	log := &logOf{}
	s := newSubscriber((&Relay{Log: log, MaxBytes: 1000, Tail: tailOf{1: numbered(1, 11, 13, 200), 3: numbered(3, 1, 2, 300), 5: numbered(5, 1, 1, 1)}}).withDefaults())
	spans := []span{{partition: 1, after: 10, to: 13}, {partition: 2, after: 4, to: 9}, {partition: 3, after: 0, to: 8}, {partition: 4, after: 6, to: 7}}
	first, err := s.first(t.Context(), spans)
	if err != nil {
		t.Fatal(err)
	}
	// Partitions 1 and 3 fill the batch: partition 4 waits for the next one.
	if want := []events.Stretch{{Partition: 2, After: 4, UpTo: 9}}; !slices.Equal(log.read, want) {
		t.Errorf("read %v from the database, want %v", log.read, want)
	}
	for i, want := range []struct {
		events int
		to     int64
	}{{3, 13}, {5, 9}, {2, 2}, {0, 6}} {
		if sp := spans[i]; len(first[sp.partition]) != want.events || sp.to != want.to {
			t.Errorf("partition %d has %d events up to %d, want %d up to %d", sp.partition, len(first[sp.partition]), sp.to, want.events, want.to)
		}
	}
}
