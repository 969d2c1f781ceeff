package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

func TestOwnerIsTheLastEpochThatBeganBefore(t *testing.T) {
	var e epochs
	e.spans[3] = []epochSpan{{1, 1}, {2, 101}, {3, 51}} // restored to 100, then to an older 50
	for position, want := range map[int64]int32{1: 1, 50: 1, 51: 3, 150: 3} {
		if got := e.owner(3, position); got != want {
			t.Errorf("position %d belongs to epoch %d, want %d", position, got, want)
		}
	}
	if e.owner(4, 9) != 0 || !e.knows(4, 0) || e.knows(4, 1) || e.knows(3, 2) || !e.knows(3, 3) {
		t.Error("a partition without epochs is of epoch 0; only the last one is known")
	}
}

// A failover loses the end of the log and the checkpoint's moves: the tail to wait for ends earlier.
func TestATailBeyondTheLogIsNotWaitedFor(t *testing.T) {
	now := time.Unix(0, 0)
	w := tailWatch{after: 5 * time.Second}
	w.lost([]lag{{1, 0, 15, 4}}, now)
	w.lost([]lag{{1, 0, 3, 3}}, now.Add(time.Second))
	if lost := w.lost([]lag{{1, 0, 3, 3}}, now.Add(6*time.Second)); len(lost) != 1 || lost[0].Number != 3 {
		t.Errorf("got %+v, want one position, 3", lost)
	}
}

func TestATailIsLostOnlyWithoutProgressBelowThePublishedPosition(t *testing.T) {
	now := time.Unix(0, 0)
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	w := tailWatch{after: 5 * time.Second}
	look := func(s int, g lag) []events.Position { return w.lost([]lag{g}, at(s)) }
	if look(0, lag{1, 0, 10, 9}) != nil || look(20, lag{1, 0, 12, 9}) != nil {
		t.Error("lost before it was relayed")
	}
	if look(21, lag{1, 0, 12, 12}) != nil || look(25, lag{1, 4, 13, 13}) != nil || look(29, lag{1, 4, 13, 13}) != nil {
		t.Error("lost too early, or though the consumer moved")
	}
	lost := look(30, lag{1, 4, 20, 13})
	if len(lost) != 1 || lost[0].Number != 13 {
		t.Fatalf("got %+v, want one position, 13", lost)
	}
	if look(31, lag{1, 4, 20, 20}) != nil {
		t.Error("lost again at once")
	}
}

func TestABacklogInProgressIsNotALostTail(t *testing.T) {
	now := time.Unix(0, 0)
	w := tailWatch{after: 5 * time.Second}
	look := func(s int, worked int64) []events.Position {
		source := 50_000 + int64(s)
		return w.lost([]lag{{1, 4, 100, 100}, {2, worked, source, source}}, now.Add(time.Duration(s)*time.Second))
	}
	for s := range 20 { // partition 1 waits while the topic delivers partition 2
		if lost := look(s, int64(s)*2000); len(lost) != 0 {
			t.Fatalf("after %d s: %d partitions count as lost", s, len(lost))
		}
	}
	if lost := look(25, 50_001); len(lost) != 1 || lost[0].Partition != 1 {
		t.Errorf("the rest is worked off: %d partitions, want partition 1", len(lost))
	}
}

func TestALostTailIsDetectedDespiteOtherProgress(t *testing.T) {
	now := time.Unix(0, 0)
	w := tailWatch{after: 5 * time.Second}
	for s := range 32 {
		lost := w.lost([]lag{{1, 4, 100, 100}, {2, int64(s), 1_000_000, 1_000_000}}, now.Add(time.Duration(s)*time.Second))
		if got := len(lost) == 1; got != (s == 20) {
			t.Fatalf("after %d s: %d partitions", s, len(lost))
		}
	}
}

func TestOnlyDataIsDeadLettered(t *testing.T) {
	for code, want := range map[string]bool{
		"22P02": true, "23505": true, "54000": true, "P0001": true,
		"40001": false, "40P01": false, "55P03": false, "57P01": false, "53100": false, "08006": false, "42P01": false, "25P02": false, "XX001": false,
	} {
		if got := ofData(fmt.Errorf("apply: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
	if ofData(errors.New("conn closed")) || !ofData(&panicked{"x"}) {
		t.Error("an error without a state is an outage, a panic is not")
	}
}

// A consumer rests in a long backlog that shrinks, and in no other.
func TestOnlyALongBacklogThatShrinksIsPaced(t *testing.T) {
	const bound = 2000
	p := &pace{}
	for n, round := range []struct {
		behind int64
		rests  bool
	}{
		{5_000_000, true}, // the log behind a new projection
		{3_000_000, true},
		{3_000_000, false}, // as much was recorded meanwhile
		{3_100_000, false},
		{400_000, true},
		{20_001, true},
		{20_000, false},
		{0, false},
		{500, false},
		{30_000, false}, // a second of much usage
		{25_000, true},
	} {
		if p.begin(round.behind, bound); p.rests.Load() != round.rests {
			t.Errorf("round %d, %d behind: it rests: %t", n, round.behind, !round.rests)
		}
	}
}

// panicking is a handler that panics for each batch.
type panicking struct{}

func (panicking) Apply(context.Context, pgx.Tx, projections.Generation, []events.Envelope) (projections.Result, error) {
	panic("applied")
}

func (panicking) FollowUps(context.Context, projections.Query, []events.InlineStretch, []events.Envelope) (projections.Result, error) {
	panic("an impossible event")
}

// TestP3_AnInlineFoldThatPanicsIsLeftToTheRunner: the panic ends no process, and the event is recorded without a verdict.
func TestP3_AnInlineFoldThatPanicsIsLeftToTheRunner(t *testing.T) {
	var logged strings.Builder
	in := NewInline(projections.Consumer{Name: "validator", Handler: panicking{}}, NewHandover(), nil, nil, slog.New(slog.NewTextHandler(&logged, nil)))
	followUps, ok, err := in.Fold(t.Context(), nil, nil, []events.Envelope{{}})
	if len(followUps) > 0 || ok || err != nil {
		t.Errorf("%v, ok %t, %v", followUps, ok, err)
	}
	for _, want := range []string{"level=ERROR", "consumer=validator", "an impossible event", "FollowUps"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log is without %q: %s", want, logged.String())
		}
	}
}
