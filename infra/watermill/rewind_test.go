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
)

// asked is a rewind that two instances find due, and what is told of it first.
type asked struct {
	mu   sync.Mutex
	id   uuid.UUID
	told [][]events.ReplayStep
}

func (a *asked) Due(context.Context, string) (*watermill.Rewind, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.told) > 0 {
		return nil, nil
	}
	return &watermill.Rewind{ID: a.id, From: map[int16]int64{3: -1}}, nil
}

func (a *asked) Done(_ context.Context, _ string, _ *watermill.Rewind, steps []events.ReplayStep, _ string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, steps)
	return nil
}

func (a *asked) first() [][]events.ReplayStep {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.told
}

// late tells only after a while that a group was moved.
type late struct{ *asked }

func (l late) Done(ctx context.Context, group string, r *watermill.Rewind, steps []events.ReplayStep, failure string) error {
	time.Sleep(300 * time.Millisecond)
	return l.asked.Done(ctx, group, r, steps, failure)
}

type silent struct{}

func (silent) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	context.AfterFunc(ctx, func() { close(out) })
	return out, nil
}

func (silent) Close() error { return nil }

// The one instance moves the group, the other finds nothing left to move: what is
// told is what was moved.
func TestARewindTellsWhatWasMovedWhoeverFindsNothingLeft(t *testing.T) {
	synctest.Test(t, tellsWhatWasMoved) // on a busy machine who moved may tell later than the other waits
}

func tellsWhatWasMoved(t *testing.T) {
	a := &asked{id: uuid.New()}
	var mu sync.Mutex
	moved := false
	move := func(context.Context, string, string, map[int16]int64) ([]events.ReplayStep, error) {
		mu.Lock()
		defer mu.Unlock()
		if moved {
			return nil, nil
		}
		moved = true
		return []events.ReplayStep{{Partition: 3, From: 9}}, nil
	}
	for _, rewinds := range []watermill.Rewinds{late{a}, late{a}} {
		s := &watermill.Rewindable{Inner: silent{}, Group: "g", Rewinds: rewinds, Move: move, Logger: slog.New(slog.DiscardHandler), Every: 10 * time.Millisecond}
		if _, err := s.Subscribe(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	for end := time.Now().Add(time.Minute); len(a.first()) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was told")
		}
	}
	time.Sleep(1500 * time.Millisecond)
	if told := a.first(); len(told) != 1 || len(told[0]) != 1 {
		t.Errorf("told %v, want the one move, once", told)
	}
}
