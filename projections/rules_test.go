package projections_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/usage"
)

func TestReasonsAreBoundedText(t *testing.T) {
	const maxReason = 500
	long := projections.Bounded(strings.Repeat("é", 400) + "\x00")
	if len(long) > maxReason || strings.ContainsRune(long, '\x00') || strings.ContainsRune(long, '\uFFFD') {
		t.Errorf("%d bytes: %q", len(long), long)
	}
}

// Follow-ups have the residency of their cause, also after a change of the tenant's.
func TestFollowUpsKeepTheResidencyOfTheirCause(t *testing.T) {
	cause := events.Envelope{TenantID: uuid.UUID{2}, Residency: "eu-central-1"}
	for _, p := range []events.Pending{
		projections.FollowUp(&cause, uuid.UUID{3}, events.UsageValidated, &events.Validated{}, "a consumer"),
		projections.Closing(&cause, uuid.UUID{4}, events.Closed{}, "a consumer"),
	} {
		if p.Residency != cause.Residency {
			t.Errorf("%+v", p)
		}
	}
}

func TestTryKeepsTheCodeOfARefusal(t *testing.T) {
	e := events.Envelope{EventID: uuid.UUID{7}}
	for want, fold := range map[string]func() error{
		"sour":                       func() error { return fmt.Errorf("fold: %w", &domain.Error{Code: "sour", Message: "m"}) },
		projections.CodeFoldFailed:   func() error { return errors.New("x") },
		projections.CodeFoldPanicked: func() error { var list []int; _ = list[len(e.DedupeKey)]; return nil },
	} {
		if f := projections.Try(e, fold); f == nil || f.Code != want || f.Event.EventID != e.EventID || f.Reason == "" {
			t.Errorf("%s: %+v", want, f)
		}
	}
	if projections.Try(e, func() error { return nil }) != nil {
		t.Error("a fold that succeeds has failed")
	}
}

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
		must.OK(t, m.Wait(t.Context(), events.GroupValidator, 3, 9, 20*time.Millisecond, time.Hour))
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

// awkwardCursors returns valid and invalid cursors of lists and positions of the log.
func awkwardCursors() []string {
	const id = "01900000-0000-7000-8000-00000000000a"
	return []string{"", "17-4711", "1-1,2-2", "32-1", "1-1,1-2", "1-01", "0-9223372036854775807", "9223372036854775808", "-1", "5/abc",
		"5/\x00", "-5/", "5", id, "{" + id + "}", id + "|calls|2026-05|" + id,
		"1|2026-05|calls|" + id, "1|2|2026-05|calls|" + id, "live|1|2|3|4|5|6|7|true", "then|1|2|3|-99999999999999999999999999|5|0|0|false",
		"live|1|2|3|4|5", "live|1|2|3|0x10|5", "usage/e1", "usage/", "usage/a\x00", "feature/\xff", "tenant/" + id,
		"meterplex.usage", "meterplex.usage.", ".", "a|b|c|d|e|f", strings.Repeat("1-1,", 40)}
}

// FuzzCursors: every accepted cursor of a list or position of the log is valid in a database
// query; any other is refused with its own error.
func FuzzCursors(f *testing.F) {
	for _, s := range awkwardCursors() {
		f.Add(s)
	}
	parsers := Cursors()
	f.Fuzz(func(t *testing.T, s string) {
		for name, take := range parsers {
			switch err := take(s); {
			case err == nil && (!utf8.ValidString(s) || strings.ContainsRune(s, 0)):
				t.Fatalf("%s takes %q", name, s)
			case err != nil && !errors.Is(err, query.ErrCursorInvalid) && !errors.Is(err, query.ErrPositionInvalid) &&
				!errors.Is(err, audit.ErrStreamInvalid) &&
				!errors.Is(err, query.ErrNotFound) && !errors.Is(err, audit.ErrSubjectUnknown):
				t.Fatalf("%s: %q: %v", name, s, err)
			}
		}
		if f, err := audit.ParseFrontier(s); err == nil {
			if again, err := audit.ParseFrontier(f.String()); err != nil || again != f {
				t.Fatalf("%q is %s, and that is %s, %v", s, f, again, err)
			}
		}
		if st, err := audit.ParseStream(s); err == nil && st.Kind+"/"+st.ID != s {
			t.Fatalf("%q is %+v", s, st)
		}
	})
}

// Cursors returns the parsers of the cursors of lists and of positions of the log.
func Cursors() map[string]func(string) error {
	return map[string]func(string) error{
		"figures":          func(s string) error { _, err := usage.ParseCursor(s); return err },
		"figures of all":   func(s string) error { _, err := usage.ParsePeriodCursor(s); return err },
		"figures as known": func(s string) error { _, _, err := usage.ParseAsOfCursor(s); return err },
		"dead letters":     func(s string) error { _, err := deadletters.ParseCursor(s); return err },
		"groups":           func(s string) error { _, _, err := deadletters.ParseGroupCursor(s); return err },
		"differences":      func(s string) error { _, err := rebuild.ParseCursor(s); return err },
		"their events":     func(s string) error { _, err := usage.ParseEventCursor(s); return err },
		"series":           func(s string) error { _, err := series.ParseCursor(s); return err },
		"explanation":      func(s string) error { _, _, err := usage.ParseExplainCursor(s); return err },
		"the log":          func(s string) error { _, err := audit.ParseFrontier(s); return err },
		"a stream":         func(s string) error { _, err := audit.ParseStream(s); return err },
		"subjects":         func(s string) error { _, err := audit.SubjectsOf(s); return err },
		"an event":         func(s string) error { _, err := audit.ParseEventRef(s); return err },
	}
}
