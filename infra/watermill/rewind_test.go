package watermill_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
)

// rewindRecorder is a rewind that two instances find due. It collects the recorded results.
type rewindRecorder struct {
	mu      sync.Mutex
	id      uuid.UUID
	results [][]events.ReplayStep
}

func (a *rewindRecorder) Due(context.Context) (*watermill.Rewind, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.results) > 0 {
		return nil, nil
	}
	return &watermill.Rewind{ID: a.id, From: -1}, nil
}

func (a *rewindRecorder) Done(_ context.Context, _ *watermill.Rewind, steps []events.ReplayStep, _ string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.results = append(a.results, steps)
	return nil
}

func (a *rewindRecorder) first() [][]events.ReplayStep {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.results
}

// lateRecorder records a result after a delay.
type lateRecorder struct{ *rewindRecorder }

func (l lateRecorder) Done(ctx context.Context, r *watermill.Rewind, steps []events.ReplayStep, failure string) error {
	time.Sleep(300 * time.Millisecond)
	return l.rewindRecorder.Done(ctx, r, steps, failure)
}

type silentSubscriber struct{}

func (silentSubscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	context.AfterFunc(ctx, func() { close(out) })
	return out, nil
}

func (silentSubscriber) Close() error { return nil }

// One instance moves the group, the other finds no offset to move. The recorded result is that of the
// first.
func TestRewindRecordsTheMovedOffsets(t *testing.T) {
	// synthetic time: on a busy machine the result might be recorded after the other instance has stopped waiting
	synctest.Test(t, recordsTheMovedOffsets)
}

func recordsTheMovedOffsets(t *testing.T) {
	a := &rewindRecorder{id: uuid.New()}
	var mu sync.Mutex
	moved := false
	move := func(context.Context, string, string, int64) ([]events.ReplayStep, error) {
		mu.Lock()
		defer mu.Unlock()
		if moved {
			return nil, nil
		}
		moved = true
		return []events.ReplayStep{{Partition: 3, From: 9}}, nil
	}
	for _, rewinds := range []watermill.Rewinds{lateRecorder{a}, lateRecorder{a}} {
		s := &watermill.Rewindable{Inner: silentSubscriber{}, Group: "g", Rewinds: rewinds, Move: move,
			Logger: slog.New(slog.DiscardHandler), Every: 10 * time.Millisecond}
		if _, err := s.Subscribe(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	must.Until(t, "a result is recorded", func() bool { return len(a.first()) > 0 })
	time.Sleep(1500 * time.Millisecond)
	if results := a.first(); len(results) != 1 || len(results[0]) != 1 {
		t.Errorf("recorded %v, want one result with one move", results)
	}
}
