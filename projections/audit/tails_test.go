package audit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/audit"
)

// A tail returns every event once, from any start, despite concurrent recording.
func TestTailsDeliverEachEventOnce(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewPipeline(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(s)
		begin, _ := openTail(d, audit.EventFilter{}, audit.TailStart{})
		cursor := begin.Cursor()
		var got []events.Envelope
		for range rapid.IntRange(2, 8).Draw(rt, "rounds") {
			d.AddStep(rt)
			after, err := audit.ParseFrontier(cursor)
			s.Must(err)
			tail, f := openTail(d, audit.EventFilter{}, audit.TailStart{After: &after})
			if rapid.Bool().Draw(rt, "meanwhile") {
				d.AddStep(rt)
			}
			f(func(e *events.Envelope) bool { // lost after some events, resumed after the last
				got, cursor = append(got, *e), tail.Pass(e)
				return rapid.IntRange(0, 9).Draw(rt, "lost") > 0
			})
		}
		after, err := audit.ParseFrontier(cursor)
		s.Must(err)
		_, f := openTail(d, audit.EventFilter{}, audit.TailStart{After: &after})
		f(func(e *events.Envelope) bool { got = append(got, *e); return true })
		start, err := audit.ParseFrontier(begin.Cursor())
		s.Must(err)
		_, want := d.ReadAll()
		want = slices.DeleteFunc(want, func(e events.Envelope) bool { return e.Position.Number <= start[d.Partition] })
		got = slices.DeleteFunc(got, func(e events.Envelope) bool { return e.Position.Partition != d.Partition })
		if !slices.Equal(positions(got), positions(want)) {
			rt.Fatalf("%v instead of %v", positions(got), positions(want))
		}
	})
}

// openTail opens a tail and returns a function that reads it to the current end.
func openTail(d *History, f audit.EventFilter, start audit.TailStart) (*audit.EventTail, func(take func(*events.Envelope) bool)) {
	d.Helper()
	tail, err := d.Reads.Tail(context.Background(), Operator, f, start)
	d.Must(err)
	return tail, func(take func(*events.Envelope) bool) {
		for {
			list, atEnd, err := tail.Next(context.Background())
			d.Must(err)
			for i := range list {
				if !take(&list[i]) {
					return
				}
			}
			if atEnd {
				return
			}
		}
	}
}

func TestTailsBeginWithTheLast(t *testing.T) {
	s := NewPipeline(t)
	a, b := TenantIn(3), TenantIn(9)
	var want []string
	for i := range 10 {
		want = append(want, s.Append(Usage([]uuid.UUID{a, b}[i%2], fmt.Sprint(i), "calls", 1, May))[0].String())
		time.Sleep(2 * time.Microsecond)
	}
	s.Subscribe(a, May, Grant("calls", domain.ResetMonthly))
	recorded := audit.EventFilter{Subjects: []events.Subject{events.UsageRecorded}}
	for n, filter := range map[int]audit.EventFilter{3: recorded, 100: recorded} {
		tail, err := s.Reads.Tail(t.Context(), Operator, filter, audit.TailStart{Last: n})
		s.Must(err)
		got, _, err := tail.Next(t.Context())
		if err != nil || !slices.Equal(positions(got), want[max(0, 10-n):]) {
			t.Errorf("the last %d: %v %v instead of %v", n, positions(got), err, want)
		}
	}
	own := audit.EventFilter{TenantID: &b}
	tail, err := s.Reads.Tail(t.Context(), TenantViewer(b), own, audit.TailStart{Last: 1})
	s.Must(err)
	if got, _, err := tail.Next(t.Context()); err != nil || !slices.Equal(positions(got), want[9:]) || tail.Pass(&got[0]) != want[9] {
		t.Errorf("of a tenant: %v %v", positions(got), err)
	}
}

// A tail that finds no event in a long log returns after each bounded part of it, with the cursor behind that part.
func TestTailsReturnAfterABoundedPartOfTheLog(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Append(Usage(tenant, "first", "calls", 1, May))
	_, err := s.Pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 350000 WHERE partition = $1`, events.PartitionOf(tenant))
	s.Must(err)
	last := s.Append(Usage(tenant, "last", "calls", 1, May))[0]
	none := audit.EventFilter{TenantID: &tenant, Subjects: []events.Subject{events.TenantCreated}}
	tail, err := s.Reads.Tail(t.Context(), Operator, none, audit.TailStart{After: &audit.Frontier{}})
	s.Must(err)
	var passed []int64
	for end := false; !end; {
		var list []events.Envelope
		list, end, err = tail.Next(t.Context())
		s.Must(err)
		at, err := events.ParsePosition(tail.Cursor())
		if err != nil || len(list) > 0 {
			t.Fatalf("%s, %d events: %v", tail.Cursor(), len(list), err)
		}
		passed = append(passed, at.Number)
	}
	if want := []int64{100_000, 200_000, 300_000, last.Number, last.Number}; !slices.Equal(passed, want) {
		t.Errorf("the positions are %d instead of %d", passed, want)
	}
}

// A tail that ends at the log's end ends where that was at its start, whatever is recorded meanwhile.
func TestTailsOfOneLookEndWhereTheLogEnded(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	first := s.Append(Usage(tenant, "first", "calls", 1, May))[0]
	tail, err := s.Reads.Tail(t.Context(), Operator, audit.EventFilter{TenantID: &tenant},
		audit.TailStart{After: &audit.Frontier{}, Once: true})
	s.Must(err)
	var got []string
	for n := range 5 {
		s.Append(Usage(tenant, fmt.Sprint("meanwhile ", n), "calls", 1, May))
		list, end, err := tail.Next(t.Context())
		s.Must(err)
		if got = append(got, positions(list)...); end {
			if n == 0 || !slices.Equal(got, []string{first.String()}) || tail.Cursor() != first.String() {
				t.Errorf("ends at read %d after %v at %s, want %s", n, got, tail.Cursor(), first)
			}
			return
		}
	}
	t.Errorf("does not end: %v", got)
}

// A tail from a time to come delivers nothing that was recorded before it.
func TestTailsFromATimeToCome(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Append(Usage(tenant, "long before", "calls", 1, May))
	from := time.Now().Add(time.Hour).UTC()
	var tails []*audit.EventTail
	for _, start := range []audit.TailStart{{}, {After: &audit.Frontier{}}, {Last: 3}} {
		tail, err := s.Reads.Tail(t.Context(), Operator, audit.EventFilter{TenantID: &tenant, From: &from}, start)
		s.Must(err)
		before := s.Append(Usage(tenant, fmt.Sprintf("before %+v", start), "calls", 1, May))[0]
		list, _, err := tail.Next(t.Context())
		if err != nil || len(list) > 0 || tail.Cursor() != before.String() {
			t.Errorf("%+v: %v at %s, recorded before %s: %v", start, positions(list), tail.Cursor(), from, err)
		}
		tails = append(tails, tail)
	}
	at := s.Append(Usage(tenant, "after", "calls", 1, May))[0]
	owner, err := pgx.Connect(t.Context(), s.URL) // the service itself cannot alter the log
	s.Must(err)
	defer owner.Close(context.Background())
	s.Must(Second(owner.Exec(t.Context(), `UPDATE event_log_rows SET recorded_at = $3 WHERE partition = $1 AND position = $2`, at.Partition,
		at.Number, from)))
	for _, tail := range tails {
		if list, _, err := tail.Next(t.Context()); err != nil || !slices.Equal(positions(list), []string{at.String()}) {
			t.Errorf("%v, want %s: %v", positions(list), at, err)
		}
	}
}
