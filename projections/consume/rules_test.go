package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// A partition is read by the poll if its checkpoint stands still behind the log, and not while it moves.
func TestAPartitionThatStandsStillIsFoundByThePoll(t *testing.T) {
	now := time.Unix(0, 0)
	w := polls{}
	look := func(s int, lags ...lag) []events.Position {
		return w.still(lags, now.Add(time.Duration(s)*time.Second), 5*time.Second)
	}
	if look(0, lag{1, 0, 10}) != nil || look(4, lag{1, 0, 12}) != nil || look(6, lag{1, 4, 13}) != nil || look(10, lag{1, 4, 13}) != nil {
		t.Error("read too early, or though the consumer moves")
	}
	if got := look(11, lag{1, 4, 20}, lag{2, 7, 9}); len(got) != 1 || got[0] != (events.Position{Partition: 1, Number: 20}) {
		t.Errorf("after five seconds: %v", got)
	}
	if look(12, lag{1, 4, 20}, lag{2, 7, 9}) != nil {
		t.Error("read again at once")
	}
	if got := look(16, lag{1, 20, 21}, lag{2, 7, 9}); len(got) != 1 || got[0].Partition != 2 {
		t.Errorf("the other partition: %v", got)
	}
	if look(17, lag{2, 9, 10}) != nil || look(30, lag{1, 20, 22}) != nil {
		t.Error("a partition that was not behind in between is read at once")
	}
}

// The greatest position that the pipe has delivered tells a record that comes again from one that was folded ahead of the pipe.
func TestRecordsThatComeAgainAreCounted(t *testing.T) {
	var s assignments
	now := time.Unix(0, 0)
	at := func(n int64) events.RecordPosition {
		return events.RecordPosition{Position: events.Position{Partition: 3, Number: n}}
	}
	s.begin(3, 10)
	s.begin(3, 14) // folded ahead of the pipe
	if again := s.delivered([]events.RecordPosition{at(9), at(10), at(12), at(14)}, now); again != 2 {
		t.Errorf("%d records come again, want those at 9 and 10", again)
	}
	if again := s.delivered([]events.RecordPosition{at(12), at(16), at(16)}, now); again != 2 {
		t.Errorf("%d records come again, want those at 12 and at 16, the second time", again)
	}
	if left := s.unassigned(now.Add(assignedFor)); slices.Contains(left, 3) || len(left) != events.Partitions-1 {
		t.Errorf("unassigned: %v", left)
	}
	if left := s.unassigned(now.Add(assignedFor + 1)); !slices.Contains(left, 3) {
		t.Error("the assignment does not end")
	}
	s.assign([]events.Position{{Partition: 4}}, now)
	if slices.Contains(s.unassigned(now), 4) {
		t.Error("the poll assigns no partition")
	}
}

func TestOnlyDataIsDeadLettered(t *testing.T) {
	for code, want := range map[string]bool{
		"22P02": true, "23505": true, "54000": true, "P0001": true,
		"40001": false, "40P01": false, "55P03": false, "57P01": false, "53100": false, "08006": false, "42P01": false, "25P02": false,
		"XX001": false,
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
	in := NewInline(projections.Consumer{Name: "validator", Handler: panicking{}}, nil, nil, nil,
		slog.New(slog.NewTextHandler(&logged, nil)))
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
