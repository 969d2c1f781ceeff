package periods_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	. "github.com/meterplex/meterplex/projections/projectionstest"
	"github.com/meterplex/meterplex/projections/usage"
)

// A close waits for rebuilds in each open state whose scope has the period, and for no other.
func TestP8_OnlyRebuildsOfThePeriodAreAwaited(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.flow()
	r := f.Start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: f.tenant})
	c := f.request()
	f.flow()
	other := NewID()
	for _, s := range []struct {
		tenant        uuid.UUID
		period, state string
		waits         bool
	}{
		{f.tenant, "", "FOLDING", true}, {f.tenant, "", "CATCHING_UP", true}, {f.tenant, "", "READY", true}, {uuid.Nil, "", "READY", true}, {f.tenant, "2026-05", "READY", true},
		{uuid.Nil, "2026-05", "FOLDING", true}, {other, "", "READY", false}, {f.tenant, "2026-04", "READY", false}, {uuid.Nil, "2026", "READY", false}, {f.tenant, "", "FAILED", false},
	} {
		f.Must(Second(f.Pool.Exec(t.Context(), `UPDATE projection_rebuilds SET tenant_id = $2, period_key = $3, state = $4 WHERE id = $1`, r.ID, s.tenant, s.period, s.state)))
		missing, err := f.periods.Store.Missing(t.Context(), domain.Closing{TenantID: f.tenant, PeriodKey: "2026-05", Snapshot: c.Snapshot})
		f.Must(err)
		if slices.Equal(missing, []string{domain.MissingRebuilds}) != s.waits || !s.waits && len(missing) > 0 {
			t.Errorf("a close waits for %v beside a rebuild of %q of %s that is %s", missing, s.period, s.tenant, s.state)
		}
	}
	f.Must(Second(f.Pool.Exec(t.Context(), `UPDATE projection_rebuilds SET tenant_id = $2, period_key = '', state = 'FOLDING' WHERE id = $1`, r.ID, f.tenant)))
	f.waits(c, domain.MissingRebuilds)
	_, err := f.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, r.ID, "test")
	f.Must(err)
	f.ends(c)
	f.want("lines", f.lines(), "calls 10/1")
}

// A period is due when the hours of the policy have passed since its end; months, years, not lifetime.
func TestP8_ClosesAreDueHoursAfterTheEnd(t *testing.T) {
	f := newCloseFixture(t)
	f.Must(Second(f.Pool.Exec(t.Context(), `INSERT INTO usage_aggregates (generation, tenant_id, feature, period_key, subscription_id, amount, event_count, period_start, period_end, last_event_at, partition, applied_count)
SELECT 1, $1, 'calls', p.key, $1, 1, 1, CASE WHEN p.key <> 'lifetime' THEN now() - interval '40 days' END, now() - p.since, now(), $2, 1
FROM (VALUES ('2026-05', interval '90 minutes'), ('2026-04', interval '121 minutes'), ('2025', interval '3 hours'), ('2026', interval '-1 hour'), ('lifetime', NULL)) p (key, since)`, f.tenant, f.partition)))
	due := func() (keys string) {
		for last := (domain.Closing{}); ; {
			list, err := f.periods.Store.DueCloses(t.Context(), last, 1)
			if f.Must(err); len(list) == 0 {
				return keys
			}
			last = list[0]
			keys += last.PeriodKey + " "
		}
	}
	f.want("due without a policy", due(), "")
	f.Must(Second(f.Pool.Exec(t.Context(), `UPDATE tenants SET close_after_hours = 2 WHERE id = $1`, f.tenant)))
	f.want("due after 2 hours", due(), "2025 2026-04 ")
	f.Must(Second(f.Pool.Exec(t.Context(), `UPDATE tenants SET close_after_hours = 1 WHERE id = $1`, f.tenant)))
	f.want("due after an hour", due(), "2025 2026-04 2026-05 ")
	f.Must(Second(f.Pool.Exec(t.Context(), `UPDATE tenants SET status = 'ARCHIVED' WHERE id = $1`, f.tenant)))
	f.want("due of an archived tenant", due(), "")
}

// While figures are frozen, no verdict is folded, and nothing is appended to the tenant's partition.
func TestP8_AFreezeLocksTheFigures(t *testing.T) {
	f := newCloseFixture(t)
	f.Must(f.periods.Store.FreezePeriod(t.Context(), f.tenant, func(commands.FreezeTx) error {
		for _, lock := range []string{`SELECT FROM consumer_checkpoints WHERE consumer = 'meterplex-usage-aggregator' AND partition = $1 FOR UPDATE NOWAIT`,
			`SELECT FROM log_heads WHERE partition = $1 FOR UPDATE NOWAIT`} {
			if _, err := f.Pool.Exec(t.Context(), lock, f.partition); err == nil {
				t.Errorf("not held: %s", lock)
			}
		}
		return nil
	}))
}

// escapedIDs are legal ids. JSON writes their backslashes as two; the text then looks like an escape that PostgreSQL cannot read.
var escapedIDs = []string{`CORP\udaya-17`, `C:\u0000`, `\\u0000`, `\UDBFF\\\udc00`}

// Usage whose id has a backslash is found as any other: a close counts it, a figure is explained by it, and its failures are known.
func TestP4_IDsWithBackslashesAreFound(t *testing.T) {
	f := newCloseFixture(t)
	explained := func(feature string) usage.Explanation {
		e, err := f.Reads.Explain(t.Context(), Operator, usage.ExplainQuery{TenantID: f.tenant, Feature: feature, PeriodKey: "2026-05", Limit: 100, Rejected: true})
		f.Must(err)
		return e
	}
	f.lateUsage(events.LateUsageAdjust)
	for i, id := range escapedIDs {
		f.Append(Admitted(f.tenant, id, "tokens", int64(1+i), May))
		f.record("parked "+id, "panics", 5)
	}
	f.flow()
	for _, id := range escapedIDs {
		f.Append(Correction(f.tenant, "corrects "+id, "panics", "parked "+id, 3).Pending)
	}
	f.flow()
	if e := explained("tokens"); !e.Adds || len(e.Data) != len(escapedIDs) || e.Total != "10" {
		t.Errorf("explained: %+v", e)
	}
	if e := explained("panics"); !e.Adds || len(e.Data) != 0 || len(e.LeftOut) != 2*len(escapedIDs) {
		t.Errorf("explained with parked usage: %+v", e)
	}
	if c := f.Counts(f.partition); c.Rejected != int64(len(escapedIDs)) {
		t.Errorf("%+v: a correction of parked usage was accepted", c)
	}
	for i, id := range escapedIDs {
		for name, want := range map[string]int{id: 2, "parked " + id: 3} { // recorded, validated; its failure
			page, err := f.Reads.Events(t.Context(), Operator, audit.LogQuery{EventFilter: audit.EventFilter{TenantID: &f.tenant, Stream: audit.Stream{Kind: "usage", ID: name}}, Limit: 100})
			f.Must(err)
			if len(page.Data) != want {
				t.Errorf("%d: the stream of %s has %d events, want %d", i, name, len(page.Data), want)
			}
		}
	}
	c := f.request()
	for _, id := range escapedIDs {
		f.Append(Admitted(f.tenant, "late "+id, "tokens", 7, May))
	}
	f.flow()
	f.waits(c, domain.MissingLetters)
	for id, letter := range f.deciding.LettersByEvent(f.tenant, events.StatusFailed) {
		if err := f.deciding.Discard(f.tenant, letter); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "tokens 10/4")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING")
}
