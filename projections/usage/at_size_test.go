package usage_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// P12: a page of an explanation costs the same in a long figure as in a short one, and beside
// other figures of any size; an as-of read of a figure does not read the others.
func TestP12_PagesOfExplanationsDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	s.Write(
		Written{From: 100_000, Events: 1000, Run: 1000, Rejects: 20, Features: []string{"calls"}, Vacuum: true},
	) // statistics of a small tenant
	s.Write(Written{Events: 30_000, Run: 1000, Rejects: 500, Features: []string{"calls"}})
	s.Write(Written{From: 30_000, Events: 30_000, Run: 30_000, Rejects: 500, Features: []string{"calls"}}) // an import
	s.Write(Written{From: 60_000, Events: 100, Run: 10, Rejects: 500, Features: []string{"rare"}})
	for key, viewer := range s.Viewers() {
		for _, feature := range []string{"calls", "rare"} {
			q := usage.ExplainQuery{TenantID: s.Tenant, Feature: feature, PeriodKey: "2026-05", Limit: 50}
			most := int64(40_000) // the first page proves a figure of checkedAtOnce events
			for page := range 4 {
				s.AtMost(most, "an explanation of "+feature+" by a key of the "+key, func() {
					e, err := s.Reads.Explain(t.Context(), viewer, q)
					if err != nil || !e.Adds || page < 2 && len(e.Data) != 50 {
						t.Errorf("%s: %d events, adds %v, %v", feature, len(e.Data), e.Adds, err)
					}
					q.After = e.Next
				})
				if most = 1500; q.After == "" {
					break
				}
			}
		}
		readAsOf(s, 3000, key, viewer, "rare", s.Head(s.Tenant).Number, 100)
		readAsOf(s, 15_000, key, viewer, "calls", s.Head(s.Tenant).Number, 60_830)
		readAsOf(s, 30_000, key, viewer, "calls", s.Head(s.Tenant).Number/2, -1)
		readAsOf(s, 15_000, key, viewer, "", s.Head(s.Tenant).Number, 60_830)
	}
}

// readAsOf reads the figures of a feature as of a position, and compares the events of the first; -1: of some.
func readAsOf(s *Sized, most int64, key string, viewer query.Viewer, feature string, at, count int64) {
	s.Helper()
	s.AtMost(most, fmt.Sprintf("%q as of %d by a key of the %s", feature, at, key), func() {
		q := usage.AggregateQuery{TenantID: s.Tenant, Feature: feature, PeriodKey: "2026-05", Limit: 10}
		page, err := s.Reads.AggregatesAsOf(
			s.Context(),
			viewer,
			q,
			usage.AsOf{Position: &events.Position{Partition: s.Partition, Number: at}},
		)
		if err != nil || len(page.Data) == 0 || count >= 0 && page.Data[0].EventCount != count {
			s.Errorf("%q as of %d: %+v %v", feature, at, page, err)
		}
	})
}

// P12: an explanation with the events left out costs the page and the listed events, in a figure of any
// size; in a tenant with more refusals than one answer looks through it ends, and says so.
func TestP12_LeftOutEventsDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	s.Write(
		Written{From: 100_000, Events: 1000, Run: 1000, Rejects: 20, Features: []string{"calls"}, Vacuum: true},
	) // statistics of a small tenant
	s.Write(Written{Events: 30_000, Run: 1000, Rejects: 500, Features: []string{"calls"}})
	s.Write(Written{From: 30_000, Events: 30_000, Run: 30_000, Rejects: 500, Features: []string{"calls"}}) // an import
	withholdVerdicts(s, 20_000, 30)
	for range 3 { // the server may change the plan of a statement after its fifth run
		readLeftOut(s, 20_000, "calls", 50+120+30, false)
		readLeftOut(s, 5000, "none", 0, false)
	}
	s.Write(Written{From: 200_000, Events: 11_000, Run: 1000, Rejects: 1, Features: []string{"other"}})
	readLeftOut(s, 80_000, "calls", 30, true)
	readLeftOut(s, 15_000, "other", 1000, true)
	withholdVerdicts(s, 25_000, 11_000)
	readLeftOut(s, 80_000, "calls", 1000, true)
}

// withholdVerdicts records that the pipe did not carry n verdicts of the tenant, after the first ones.
func withholdVerdicts(s *Sized, first, n int) {
	s.Helper()
	rows, err := s.Pool.Query(
		s.Context(),
		`SELECT position, dedupe_key FROM event_log_rows WHERE partition = $1 AND tenant_id = $2 AND subject = 2 ORDER BY position OFFSET $3
			LIMIT $4`,
		s.Partition,
		s.Tenant,
		first,
		n,
	)
	s.Must(err)
	var number int64
	var key string
	var letters []events.Pending
	_, err = pgx.ForEachRow(rows, []any{&number, &key}, func() error {
		letters = append(
			letters,
			Plain(
				s.Tenant,
				events.PublishFailed,
				events.Counts{Parked: 1},
				events.Failed{SourcePosition: number, Stage: events.StagePublishing, Code: "publish_refused"},
			),
		)
		return nil
	})
	s.Must(err)
	for some := range slices.Chunk(letters, 1000) {
		s.Append(some...)
	}
	s.Drain(s.Lettering)
	s.EndSessions()
}

// readLeftOut reads the events left out of a figure, live and as of a position.
func readLeftOut(s *Sized, most int64, feature string, want int, more bool) {
	s.Helper()
	now := usage.AsOf{Position: new(s.Head(s.Tenant))}
	for key, viewer := range s.Viewers() {
		for _, asOf := range []*usage.AsOf{nil, &now} {
			s.AtMost(most, "what is left out of "+feature+" by a key of the "+key, func() {
				e, err := s.Reads.Explain(
					s.Context(),
					viewer,
					usage.ExplainQuery{TenantID: s.Tenant, Feature: feature, PeriodKey: "2026-05", Limit: 50, AsOf: asOf, Rejected: true},
				)
				if err != nil || len(e.LeftOut) != want || e.LeftOutMore != more {
					s.Errorf("%s: %d events are left out, more %v, %v", feature, len(e.LeftOut), e.LeftOutMore, err)
				}
			})
		}
	}
}

// P12: a page of figures as of a position costs the figures on it: of figures that began later it reads
// the first verdicts, however many they have.
func TestP12_FiguresAsOfAPositionDoNotReadLaterOnes(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	s.Write(Written{Events: 100, Run: 10, Rejects: 500, Features: []string{"rare"}})
	at := s.Head(s.Tenant).Number
	var later []string // before rare in the list
	for i := range 100 {
		later = append(later, fmt.Sprintf("later-%03d", i))
	}
	s.Write(Written{From: 1000, Events: 100 * 140, Run: 1000, Rejects: 1 << 30, Features: later, Vacuum: true})
	for key, viewer := range s.Viewers() {
		for range 7 {
			readAsOf(s, 100*100, key, viewer, "", at, 100)
		}
	}
}

// P12: a page of the events of one subscription reads a bounded part of a figure, which has many events of others; all
// pages together add up exactly.
func TestP12_PagesOfOneSubscriptionDoNotReadTheOthers(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	one, other := s.Subscription, NewID()
	from := 0
	for _, part := range []struct {
		of     uuid.UUID
		events int
	}{{one, 3}, {other, 25_000}, {one, 3}, {other, 1500}} {
		s.Subscription = part.of
		s.Write(Written{From: from, Events: part.events, Run: min(part.events, 1000), Rejects: 1 << 30, Features: []string{"calls"}})
		from += part.events
	}
	now := usage.AsOf{Position: new(s.Head(s.Tenant))}
	for key, viewer := range s.Viewers() {
		for _, asOf := range []*usage.AsOf{nil, &now} {
			q := usage.ExplainQuery{TenantID: s.Tenant, Feature: "calls", PeriodKey: "2026-05", SubscriptionID: one, AsOf: asOf, Limit: 3}
			var listed, pages, empty int
			for more := true; more; more = q.After != "" {
				s.AtMost(60_000, fmt.Sprintf("page %d by a key of the %s", pages+1, key), func() {
					e, err := s.Reads.Explain(t.Context(), viewer, q)
					s.Must(err)
					if !e.Adds || e.EventCount != 6 || len(e.Data) > 0 && e.Next == "" && e.Data[len(e.Data)-1].RunningTotal != e.Total {
						t.Errorf("page %d: %+v", pages+1, e)
					}
					if listed += len(e.Data); len(e.Data) == 0 {
						empty++
					}
					q.After = e.Next
				})
				pages++
			}
			if listed != 6 || empty == 0 {
				t.Errorf("%d events on %d pages, %d of them empty", listed, pages, empty)
			}
		}
	}
}
