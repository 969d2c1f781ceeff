package periods_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/usage"
)

// The validator ends the dead letter of a retried event before the aggregator folds the verdict: a close waits for the fold, and reports no
// drift.
func TestP8_ACloseWaitsForTheVerdictOfARetry(t *testing.T) {
	f := newCloseFixture(t)
	d := &History{Pipeline: f.Pipeline, Tenant: f.tenant}
	f.record("a", "calls", 5)
	waiting := f.Read(events.TopicUsageRaw, f.partition, f.Checkpoint(events.GroupValidator, f.partition))
	d.WithholdBy(waiting[len(waiting)-1])
	f.flow()
	c := f.request()
	f.waits(c, domain.MissingLetters)
	f.retry("a")
	f.waits(c, domain.MissingRetries)
	f.Drain(f.Validating)
	f.waits(c, domain.MissingAggregation)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 5/1")
	f.want("adjustments", f.adjusted(), "")
}

// The cut is the position of the request, taken under the head's lock: usage whose transaction is before that of the request counts,
// although the request arrived first.
func TestP8_TheCutIsTakenUnderTheLockOfTheHead(t *testing.T) {
	f := newCloseFixture(t)
	ctx := context.Background()
	tx, err := f.Pool.Begin(ctx)
	f.Must(err)
	f.Must(f.EventLog.LockHeads(ctx, eventlog.In(tx), []int16{f.partition}))
	var c billing.RequestedClose
	done := make(chan error, 1)
	go func() {
		var err error
		c, err = f.periods.Close(
			ctx,
			commands.Request{By: Billing},
			billing.ClosePeriod{TenantID: f.tenant, PeriodKey: "2026-05", Reason: "test"},
		)
		done <- err
	}()
	f.Until(func() bool { return f.LockWaiters() > 0 })
	at, err := f.EventLog.AppendTx(ctx, tx, []events.Pending{Usage(f.tenant, "a", "calls", 5, May)})
	f.Must(err)
	f.Must(tx.Commit(ctx))
	f.Must(<-done)
	if c.CutPosition.Number <= at[0].Number {
		t.Errorf("the cut is %s, behind it is usage at %s", c.CutPosition, at[0])
	}
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 5/1")
	f.want("adjustments", f.adjusted(), "")
	if failed := f.deciding.Failed(f.tenant); len(failed) > 0 {
		t.Errorf("refused: %+v", failed)
	}
}

// Late verdicts that are folded before the freeze are no part of the figures.
func TestP8_LateVerdictsBeforeTheFreezeAreAdjustments(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.record("b", "calls", 20)
	f.flow()
	c := f.request()
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 5)
	f.Append(Correction(f.tenant, "a1", "calls", "a", 7).Pending, Correction(f.tenant, "b1", "calls", "b", -1).Pending)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 30/2")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 PENDING, 1 CORRECTION -3/0 PENDING, 1 RETRACTION -20/-1 PENDING")
	f.check()
}

// A verdict that is late for a snapshot, and made after its reopening, is no adjustment: the next snapshot counts it.
func TestP8_AVerdictAfterTheReopeningIsAVoidAdjustment(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.close()
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 5)
	f.reopen()
	f.flow()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 VOID")
	f.close()
	f.want("lines", f.lines(), "calls 15/2")
	f.check()
}

// A rejected event that is retried behind the cut is late, although it was recorded before: its verdict, a parked one, and one whose fold
// is retried are not in the figures, and the close does not wait for their dead letters.
func TestP8_AVerdictOfARetryBehindTheCutIsLate(t *testing.T) {
	f := closeFixtureOf(NewRebuilds(t))
	for name, folds := range map[string]func(*closeFixture){
		"folded": func(f *closeFixture) { f.Drain(f.Validating, f.Aggregating, f.Lettering) },
		"parked": func(f *closeFixture) { f.flow() },
		"parked twice": func(f *closeFixture) {
			f.flow()
			f.retry("a")
			f.flow()
		},
		"folded by a retry": func(f *closeFixture) {
			f.flow()
			f.retry("a")
			f.Drain(f.Aggregating, f.Lettering)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.useTenant(NewID())
			f.Subscribe(f.tenant, May, Grant("calls", domain.ResetMonthly)) // and not "panics"
			f.record("b", "calls", 1)
			f.record("a", "panics", 5) // is rejected
			f.flow()
			c := f.request()
			f.grant()
			f.retry("a")
			folds(f)
			f.ends(c)
			f.want("lines", f.lines(), "calls 1/1")
			f.want("adjustments", f.adjusted(), "1 RETRY 5/1 PENDING")
		})
	}
}

// Late verdicts that fail, that are made or that are not folded yet when the figures by the rows are computed are subtracted as far as the
// rows have them: the first comparison agrees.
func TestP8_LateVerdictsBetweenTheComputations(t *testing.T) {
	f := newCloseFixture(t)
	frozen := f.periods.Store
	for name, c := range map[string]struct {
		before, between func(*closeFixture)
		adjusted        string
	}{
		"known and fails": {func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, (*closeFixture).flow, "1 LATE_USAGE 5/1 PENDING"},
		"known and folded": {func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, func(f *closeFixture) { f.Drain(f.Aggregating) }, "1 LATE_USAGE 5/1 PENDING"},
		"known and not folded": {func(f *closeFixture) {
			f.record("folded", "calls", 3)
			f.Drain(f.Validating, f.Aggregating)
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, func(*closeFixture) {}, "1 LATE_USAGE 3/1 PENDING, 1 LATE_USAGE 5/1 PENDING"},
		"made and not folded": {func(*closeFixture) {}, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, "1 LATE_USAGE 5/1 PENDING"},
		"made and folded": {func(*closeFixture) {}, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating, f.Aggregating)
		}, "1 LATE_USAGE 5/1 PENDING"},
		"made and fails": {func(f *closeFixture) { f.record("folded", "calls", 3) }, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.flow()
		}, "1 LATE_USAGE 3/1 PENDING, 1 LATE_USAGE 5/1 PENDING"},
	} {
		t.Run(name, func(t *testing.T) {
			f.newTenant()
			f.record("a", "panics", 1)
			f.Drain(f.Validating, f.Aggregating)
			f.lateUsage(events.LateUsageAdjust)
			between := &flippingStore{PeriodStore: frozen, flip: func() { c.between(f) }}
			f.periods.Store = between
			closing := f.request()
			f.Drain(f.Validating, f.Aggregating)
			c.before(f)
			if s := f.advance(closing.ID); s.State != domain.SagaCompleted || between.runs != 1 {
				t.Fatalf("the close is %s after %d computations: %s", s.State, between.runs, s.LastError)
			}
			f.want("lines", f.lines(), "panics 1/1")
			f.want("adjustments", f.adjusted(), c.adjusted)
			f.check()
		})
	}
}

// Of a feature with more verdicts than one statement reads, those that failed are not in the figures, whether late or not.
func TestP8_FailedVerdictsOfALargeFigureAreNotFrozen(t *testing.T) {
	f := newCloseFixture(t)
	var batch []events.Pending
	for i := range 130 {
		batch = append(batch, Usage(f.tenant, fmt.Sprint(i), "panics", 1, May))
	}
	f.Append(batch...)
	f.Drain(f.Validating, f.Aggregating)
	f.record("bad", "panics", 10)
	f.flow()
	f.lateUsage(events.LateUsageAdjust)
	c := f.request(domain.MissingLetters)
	f.record("late", "panics", 100)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "panics 130/130")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 100/1 PENDING")
}

// A close waits for rebuilds in each open state whose scope has the period, and for no other.
func TestP8_OnlyRebuildsOfThePeriodAreAwaited(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.flow()
	r := f.Start(repair.StartRebuild{Projection: projections.ProjectionUsage, TenantID: f.tenant})
	c := f.request()
	f.flow()
	other := NewID()
	for _, s := range []struct {
		tenant        uuid.UUID
		period, state string
		waits         bool
	}{
		{f.tenant, "", "FOLDING", true}, {f.tenant, "", "CATCHING_UP", true}, {f.tenant, "", "READY", true}, {uuid.Nil, "", "READY", true},
		{f.tenant, "2026-05", "READY", true},
		{uuid.Nil, "2026-05", "FOLDING", true}, {other, "", "READY", false}, {f.tenant, "2026-04", "READY", false},
		{uuid.Nil, "2026", "READY", false}, {f.tenant, "", "FAILED", false},
	} {
		f.Must(
			Second(
				f.Pool.Exec(
					t.Context(),
					`UPDATE projection_rebuilds SET tenant_id = $2, period_key = $3, state = $4 WHERE id = $1`,
					r.ID,
					s.tenant,
					s.period,
					s.state,
				),
			),
		)
		missing, err := f.periods.Store.Missing(t.Context(), domain.Closing{TenantID: f.tenant, PeriodKey: "2026-05", Snapshot: c.Snapshot})
		f.Must(err)
		if slices.Equal(missing, []string{domain.MissingRebuilds}) != s.waits || !s.waits && len(missing) > 0 {
			t.Errorf("a close waits for %v beside a rebuild of %q of %s that is %s", missing, s.period, s.tenant, s.state)
		}
	}
	f.Must(
		Second(
			f.Pool.Exec(
				t.Context(),
				`UPDATE projection_rebuilds SET tenant_id = $2, period_key = '', state = 'FOLDING' WHERE id = $1`,
				r.ID,
				f.tenant,
			),
		),
	)
	f.waits(c, domain.MissingRebuilds)
	_, err := f.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, r.ID, "test")
	f.Must(err)
	f.ends(c)
	f.want("lines", f.lines(), "calls 10/1")
}

// A period is due when the hours of the policy have passed since its end; months, years, not lifetime.
func TestP8_ClosesAreDueHoursAfterTheEnd(t *testing.T) {
	f := newCloseFixture(t)
	f.Must(
		Second(
			f.Pool.Exec(
				t.Context(),
				`INSERT INTO usage_aggregates (generation, tenant_id, feature, period_key, subscription_id, amount, event_count,
					period_start, period_end, last_event_at, partition, applied_count)
SELECT 1, $1, 'calls', p.key, $1, 1, 1, CASE WHEN p.key <> 'lifetime' THEN now() - interval '40 days' END, now() - p.since, now(), $2, 1
FROM (VALUES ('2026-05', interval '90 minutes'), ('2026-04', interval '121 minutes'), ('2025', interval '3 hours'), ('2026',
interval '-1 hour'), ('lifetime', NULL)) p (key, since)`,
				f.tenant,
				f.partition,
			),
		),
	)
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

// escapedIDs are legal ids. JSON writes their backslashes as two; the text then looks like an escape that PostgreSQL cannot read.
var escapedIDs = []string{`CORP\udaya-17`, `C:\u0000`, `\\u0000`, `\UDBFF\\\udc00`}

// Usage whose id has a backslash is found as any other: a close counts it, a figure is explained by it, and its failures are known.
func TestP4_IDsWithBackslashesAreFound(t *testing.T) {
	f := newCloseFixture(t)
	explained := func(feature string) usage.Explanation {
		e, err := f.Reads.Explain(
			t.Context(),
			Operator,
			usage.ExplainQuery{TenantID: f.tenant, Feature: feature, PeriodKey: "2026-05", Limit: 100, Rejected: true},
		)
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
			page, err := f.Reads.Events(
				t.Context(),
				Operator,
				audit.LogQuery{
					EventFilter: audit.EventFilter{TenantID: &f.tenant, Stream: audit.Stream{Kind: "usage", ID: name}},
					Limit:       100,
				},
			)
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
	f.want(
		"adjustments",
		f.adjusted(),
		"1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING, 1 LATE_USAGE 7/1 PENDING",
	)
}
