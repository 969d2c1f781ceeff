package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/usage"
)

// escapedIDs are legal ids. JSON writes their backslashes as two; the text then looks like an escape that PostgreSQL cannot read.
var escapedIDs = []string{`CORP\udaya-17`, `C:\u0000`, `\\u0000`, `\UDBFF\\\udc00`}

// Usage whose id has a backslash is found as any other: a close counts it, a figure is explained by it, and its failures are known.
func TestP4_IDsWithBackslashesAreFound(t *testing.T) {
	f := newCloseFixture(t)
	explained := func(feature string) usage.Explanation {
		e, err := f.reads.Explain(t.Context(), operator, usage.ExplainQuery{TenantID: f.tenant, Feature: feature, PeriodKey: "2026-05", Limit: 100, Rejected: true})
		f.must(err)
		return e
	}
	f.lateUsage(events.LateUsageAdjust)
	for i, id := range escapedIDs {
		f.append(admittedEvent(f.tenant, id, "tokens", int64(1+i), may))
		f.record("parked "+id, "panics", 5)
	}
	f.flow()
	for _, id := range escapedIDs {
		f.append(correction(f.tenant, "corrects "+id, "panics", "parked "+id, 3).Pending)
	}
	f.flow()
	if e := explained("tokens"); !e.Adds || len(e.Data) != len(escapedIDs) || e.Total != "10" {
		t.Errorf("explained: %+v", e)
	}
	if e := explained("panics"); !e.Adds || len(e.Data) != 0 || len(e.LeftOut) != 2*len(escapedIDs) {
		t.Errorf("explained with parked usage: %+v", e)
	}
	if c := f.counts(f.partition); c.Rejected != int64(len(escapedIDs)) {
		t.Errorf("%+v: a correction of parked usage was accepted", c)
	}
	for i, id := range escapedIDs {
		for name, want := range map[string]int{id: 2, "parked " + id: 3} { // recorded, validated; its failure
			page, err := f.reads.Events(t.Context(), operator, audit.LogQuery{EventFilter: audit.EventFilter{TenantID: &f.tenant, Stream: audit.Stream{Kind: "usage", ID: name}}, Limit: 100})
			f.must(err)
			if len(page.Data) != want {
				t.Errorf("%d: the stream of %s has %d events, want %d", i, name, len(page.Data), want)
			}
		}
	}
	c := f.request()
	for _, id := range escapedIDs {
		f.append(admittedEvent(f.tenant, "late "+id, "tokens", 7, may))
	}
	f.flow()
	f.waits(c, domain.MissingLetters)
	for id, letter := range f.deciding.lettersByEvent(f.tenant, events.StatusFailed) {
		if err := f.deciding.discard(f.tenant, letter); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "tokens 10/4")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING")
}
