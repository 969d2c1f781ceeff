package consume

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// handoverTest offers the events of one partition, whose topic holds every second position.
type handoverTest struct {
	*testing.T
	*Handover
	log   uuid.UUID
	epoch int32
	now   time.Time
}

func newHandoverTest(t *testing.T) *handoverTest {
	return &handoverTest{t, NewHandover(), uuid.New(), 1, time.Now()}
}

func (h *handoverTest) at(n int64) events.Place {
	return events.Place{Position: events.Position{Partition: 3, Number: n}, Previous: max(n-2, 0), Epoch: h.epoch, Log: h.log}
}

// offer offers an event and checks whether it can be folded at once.
func (h *handoverTest) offer(n int64, want bool) {
	h.Helper()
	at := h.at(n)
	event := func() *events.Envelope {
		return &events.Envelope{Position: at.Position, Previous: at.Previous, Epoch: at.Epoch, LogID: at.Log}
	}
	if got := h.Offer(at, h.now, event); got != want {
		h.Errorf("the event at %d can be folded: %v, want %v", n, got, want)
	}
}

// pipe delivers a record, and folds it if it was not passed.
func (h *handoverTest) pipe(n int64, want bool) {
	h.Helper()
	if got, again := h.passed(h.at(n), h.log, h.now); got != want || again {
		h.Errorf("the record at %d was passed: %v, want %v; again: %v", n, got, want, again)
	}
	if !want {
		h.reach(h.at(n).Position, h.epoch)
	}
}

// fold takes events and checks their numbers.
func (h *handoverTest) fold(want ...int64) {
	h.Helper()
	taken := h.poll(100, 100)
	for i := range taken {
		if i >= len(want) || taken[i].Position.Number != want[i] {
			h.Fatalf("took the event at %d as number %d, want %v", taken[i].Position.Number, i, want)
		}
		h.reach(taken[i].Position, taken[i].Epoch)
	}
	if len(taken) != len(want) {
		h.Errorf("took %d events, want %v", len(taken), want)
	}
}

func TestP2_HandedEventsFollowWhatWasReached(t *testing.T) {
	h := newHandoverTest(t)
	h.offer(1, false) // before the first commit
	h.pipe(1, false)
	h.offer(3, true)
	h.offer(5, true)
	h.fold(3, 5)
	h.pipe(3, true)
	h.pipe(5, true)
	h.offer(9, false) // another process appended 7
	h.offer(11, false)
	h.fold()
	h.pipe(7, false)
	h.fold(9, 11)
	h.offer(13, true)
	h.pipe(13, false) // the pipe was first
	h.fold()
	h.offer(15, true)
	if passed, again := h.passed(h.at(5), h.log, h.now); !passed || !again {
		t.Errorf("the record at 5 was passed: %v, again: %v; want a duplicate", passed, again)
	}
}

func TestP2_HandedEventsOfAnEndedEpochAreDropped(t *testing.T) {
	h := newHandoverTest(t)
	h.pipe(1, false)
	h.offer(3, true)
	h.epoch = 2 // the log lost 3
	h.pipe(3, false)
	h.fold()
	h.offer(5, true)
	h.fold(5)
	h.epoch = 1
	h.offer(7, false)
	if passed, _ := h.passed(h.at(3), h.log, h.now); passed {
		t.Error("a record of the ended epoch counts as folded")
	}
	h.epoch = 2
	if passed, _ := h.passed(h.at(5), uuid.New(), h.now); passed {
		t.Error("a record of another log counts as folded")
	}
}

// After a failure the events are left to the pipe, and those behind them wait for it.
func TestP2_AFailureLeavesHandedEventsToThePipe(t *testing.T) {
	h := newHandoverTest(t)
	h.pipe(1, false)
	h.offer(3, true)
	h.offer(5, true)
	if taken := h.poll(1, 1); len(taken) != 1 {
		t.Fatalf("took %d events, want 1", len(taken))
	}
	h.forget([]*partitionRun{{partition: 3}})
	h.fold()
	h.offer(7, false)
	h.pipe(3, false)
	h.fold()
	h.pipe(5, false)
	h.fold(7)
}

func TestHandoverLeavesALongBacklogToThePipe(t *testing.T) {
	h := newHandoverTest(t)
	h.pipe(1, false)
	h.offer(3+maxBehind, false)
	h.pipe(1+maxBehind, false)
	h.fold()
	h.offer(3+maxBehind, true)
	h.fold(3 + maxBehind)
	if h.waiting != 0 {
		t.Errorf("%d events wait, want none", h.waiting)
	}
}

// A process that the pipe no longer delivers a partition to leaves it to the others.
func TestHandoverEndsWithTheDeliveries(t *testing.T) {
	h := newHandoverTest(t)
	h.pipe(1, false)
	h.offer(3, true)
	h.fold(3)
	h.now = h.now.Add(2 * pipedWithin)
	h.offer(5, false)
	h.pipe(5, false)
	h.offer(7, true)
	h.fold(7)
}
