package projections_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// P12: reads of one event cost the same in a long log as in a short one, with a tenant's key as
// with an operator's.
func TestP12_ReadsOfOneEventDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := newSizeFixture(t)
	s.write(written{events: 60_000, run: 1000, rejects: 20, features: []string{"calls"}})
	for key, viewer := range s.viewers() {
		for _, id := range []string{"e-30000", "e-30019"} { // one of them is rejected
			s.atMost(500, "a receipt by a key of the "+key, func() {
				r, err := s.reads.Receipt(t.Context(), viewer, s.tenant, id, query.Wait{})
				if err != nil || r.Validated == nil && r.Rejected == nil {
					t.Errorf("%s: %+v %v", id, r, err)
				}
			})
			at := s.receipt(s.tenant, id).Recorded.Position
			s.atMost(2*2000+500, "a lineage by a key of the "+key, func() {
				l, err := s.reads.Lineage(t.Context(), viewer, audit.LineageQuery{Ref: audit.EventRef{Position: &at}, TenantID: &s.tenant, Span: 1000})
				if err != nil || len(l.Nodes) != 2 {
					t.Errorf("%s: %+v %v", id, l, err)
				}
			})
			s.atMost(500, "a stream by a key of the "+key, func() {
				page, err := s.reads.Events(t.Context(), viewer, audit.LogQuery{EventFilter: audit.EventFilter{TenantID: &s.tenant, Stream: audit.Stream{Kind: "usage", ID: id}}, Limit: 100})
				if err != nil || len(page.Data) != 2 || page.Next != nil || page.Data[1].Subject == events.UsageRecorded {
					t.Errorf("%s: %+v %v", id, page, err)
				}
			})
		}
	}
}

// P12: a page of an explanation costs the same in a long figure as in a short one, and beside
// other figures of any size; an as-of read of a figure does not read the others.
func TestP12_PagesOfExplanationsDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := newSizeFixture(t)
	s.write(written{from: 100_000, events: 1000, run: 1000, rejects: 20, features: []string{"calls"}, vacuum: true}) // statistics of a small tenant
	s.write(written{events: 30_000, run: 1000, rejects: 500, features: []string{"calls"}})
	s.write(written{from: 30_000, events: 30_000, run: 30_000, rejects: 500, features: []string{"calls"}}) // an import
	s.write(written{from: 60_000, events: 100, run: 10, rejects: 500, features: []string{"rare"}})
	for key, viewer := range s.viewers() {
		for _, feature := range []string{"calls", "rare"} {
			q := usage.ExplainQuery{TenantID: s.tenant, Feature: feature, PeriodKey: "2026-05", Limit: 50}
			most := int64(40_000) // the first page proves a figure of checkedAtOnce events
			for page := range 4 {
				s.atMost(most, "an explanation of "+feature+" by a key of the "+key, func() {
					e, err := s.reads.Explain(t.Context(), viewer, q)
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
		s.asOf(3000, key, viewer, "rare", s.head(s.tenant).Number, 100)
		s.asOf(15_000, key, viewer, "calls", s.head(s.tenant).Number, 60_830)
		s.asOf(30_000, key, viewer, "calls", s.head(s.tenant).Number/2, -1)
		s.asOf(15_000, key, viewer, "", s.head(s.tenant).Number, 60_830)
	}
}

// asOf reads the figures of a feature as of a position, and compares the events of the first; -1: of some.
func (s *sizeFixture) asOf(most int64, key string, viewer query.Viewer, feature string, at, count int64) {
	s.Helper()
	s.atMost(most, fmt.Sprintf("%q as of %d by a key of the %s", feature, at, key), func() {
		q := usage.AggregateQuery{TenantID: s.tenant, Feature: feature, PeriodKey: "2026-05", Limit: 10}
		page, err := s.reads.AggregatesAsOf(s.Context(), viewer, q, usage.AsOf{Position: &events.Position{Partition: s.partition, Number: at}})
		if err != nil || len(page.Data) == 0 || count >= 0 && page.Data[0].EventCount != count {
			s.Errorf("%q as of %d: %+v %v", feature, at, page, err)
		}
	})
}

// P12: an explanation with the events left out costs the page and the listed events, in a figure of any
// size; in a tenant with more refusals than one answer looks through it ends, and says so.
func TestP12_LeftOutEventsDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := newSizeFixture(t)
	s.write(written{from: 100_000, events: 1000, run: 1000, rejects: 20, features: []string{"calls"}, vacuum: true}) // statistics of a small tenant
	s.write(written{events: 30_000, run: 1000, rejects: 500, features: []string{"calls"}})
	s.write(written{from: 30_000, events: 30_000, run: 30_000, rejects: 500, features: []string{"calls"}}) // an import
	s.withholdVerdicts(20_000, 30)
	for range 3 { // the server may change the plan of a statement after its fifth run
		s.leftOut(20_000, "calls", 50+120+30, false)
		s.leftOut(5000, "none", 0, false)
	}
	s.write(written{from: 200_000, events: 11_000, run: 1000, rejects: 1, features: []string{"other"}})
	s.leftOut(80_000, "calls", 30, true)
	s.leftOut(15_000, "other", 1000, true)
	s.withholdVerdicts(25_000, 11_000)
	s.leftOut(80_000, "calls", 1000, true)
}

// withholdVerdicts records that the pipe did not carry n verdicts of the tenant, after the first ones.
func (s *sizeFixture) withholdVerdicts(first, n int) {
	s.Helper()
	rows, err := s.pool.Query(s.Context(), `SELECT position, dedupe_key FROM event_log_rows WHERE partition = $1 AND tenant_id = $2 AND subject = 2 ORDER BY position OFFSET $3 LIMIT $4`, s.partition, s.tenant, first, n)
	s.must(err)
	var number int64
	var key string
	var letters []events.Pending
	_, err = pgx.ForEachRow(rows, []any{&number, &key}, func() error {
		letters = append(letters, plainEvent(s.tenant, events.PublishFailed, events.Counts{Parked: 1}, events.Failed{SourcePosition: number, Stage: events.StagePublishing, Code: "publish_refused"}))
		return nil
	})
	s.must(err)
	for some := range slices.Chunk(letters, 1000) {
		s.append(some...)
	}
	s.drain(s.lettering)
	s.endSessions()
}

// leftOut reads the events left out of a figure, live and as of a position.
func (s *sizeFixture) leftOut(most int64, feature string, want int, more bool) {
	s.Helper()
	now := usage.AsOf{Position: new(s.head(s.tenant))}
	for key, viewer := range s.viewers() {
		for _, asOf := range []*usage.AsOf{nil, &now} {
			s.atMost(most, "what is left out of "+feature+" by a key of the "+key, func() {
				e, err := s.reads.Explain(s.Context(), viewer, usage.ExplainQuery{TenantID: s.tenant, Feature: feature, PeriodKey: "2026-05", Limit: 50, AsOf: asOf, Rejected: true})
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
	s := newSizeFixture(t)
	s.write(written{events: 100, run: 10, rejects: 500, features: []string{"rare"}})
	at := s.head(s.tenant).Number
	var later []string // before rare in the list
	for i := range 100 {
		later = append(later, fmt.Sprintf("later-%03d", i))
	}
	s.write(written{from: 1000, events: 100 * 140, run: 1000, rejects: 1 << 30, features: later, vacuum: true})
	for key, viewer := range s.viewers() {
		for range 7 {
			s.asOf(100*100, key, viewer, "", at, 100)
		}
	}
}

// P12: a page of the events of one subscription reads a bounded part of a figure, which has many events of others; all
// pages together add up exactly.
func TestP12_PagesOfOneSubscriptionDoNotReadTheOthers(t *testing.T) {
	tier.AtSize(t)
	s := newSizeFixture(t)
	one, other := s.subscription, newID()
	from := 0
	for _, part := range []struct {
		of     uuid.UUID
		events int
	}{{one, 3}, {other, 25_000}, {one, 3}, {other, 1500}} {
		s.subscription = part.of
		s.write(written{from: from, events: part.events, run: min(part.events, 1000), rejects: 1 << 30, features: []string{"calls"}})
		from += part.events
	}
	now := usage.AsOf{Position: new(s.head(s.tenant))}
	for key, viewer := range s.viewers() {
		for _, asOf := range []*usage.AsOf{nil, &now} {
			q := usage.ExplainQuery{TenantID: s.tenant, Feature: "calls", PeriodKey: "2026-05", SubscriptionID: one, AsOf: asOf, Limit: 3}
			var listed, pages, empty int
			for more := true; more; more = q.After != "" {
				s.atMost(60_000, fmt.Sprintf("page %d by a key of the %s", pages+1, key), func() {
					e, err := s.reads.Explain(t.Context(), viewer, q)
					s.must(err)
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
