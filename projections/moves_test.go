package projections_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

func TestWaitingEndsWithTheMove(t *testing.T) {
	var m projections.Moves
	to := func(position int64) []events.Position { return []events.Position{{Partition: 3, Number: position}} }
	m.Move(events.GroupValidator, to(7))
	began := time.Now()
	done := make(chan error)
	go func() { done <- m.Wait(t.Context(), events.GroupValidator, 3, 9, time.Hour, time.Hour) }()
	for position := int64(8); position <= 9; position++ {
		select {
		case err := <-done:
			t.Fatalf("ended before %d: %v", position, err)
		case <-time.After(20 * time.Millisecond):
		}
		m.Move(events.GroupValidator, to(position))
	}
	if err := <-done; err != nil || time.Since(began) > time.Minute {
		t.Error(err, time.Since(began))
	}
}

// TestWaitingNeverSpins: moves of this process may be ahead of the caller's read,
// forever if a database was restored.
func TestWaitingNeverSpins(t *testing.T) {
	var m, none = &projections.Moves{}, (*projections.Moves)(nil)
	m.Move(events.GroupValidator, []events.Position{{Partition: 3, Number: 100}})
	for name, m := range map[string]*projections.Moves{"ahead": m, "none": none} {
		began := time.Now()
		if err := m.Wait(t.Context(), events.GroupValidator, 3, 9, 20*time.Millisecond, time.Hour); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 20*time.Millisecond || took > time.Minute {
			t.Errorf("%s: waited %s, want one poll", name, took)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Wait(ctx, events.GroupValidator, 3, 200, time.Hour, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}
