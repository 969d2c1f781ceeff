package projections_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// runVerifier lets a rebuilder end verifies as an instance does.
func (y *rebuildFixture) runVerifier(b *rebuild.Rebuilder) *rebuild.Rebuilder {
	b.Verify = func(ctx context.Context, r domain.Rebuild) error {
		differs, sample, err := y.reads.Drift(ctx, r)
		if err == nil {
			err = y.reads.SaveReport(ctx, r.ID, sample)
		}
		if err != nil {
			return err
		}
		return y.rebuilds.FinishVerify(ctx, r.ID, differs)
	}
	return b
}

// ended waits for the end of a verify.
func (y *rebuildFixture) ended(r domain.Rebuild, rebuilders ...*rebuild.Rebuilder) (now domain.Rebuild) {
	y.Helper()
	y.whileRebuilding(func() {
		y.until(func() bool {
			found, err := y.rebuildStore().Rebuild(context.Background(), r.ID)
			y.must(err)
			now = *found
			return !now.Open()
		})
	}, rebuilders...)
	return now
}

// The cleaner waits for a promotion of the very generation that it was about to
// drop, and then leaves it.
func TestP5_AGenerationPromotedMeanwhileIsNotDropped(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 10, may))
	y.settle()
	r := y.built(commands.StartRebuild{})
	y.must(y.promote(r))
	y.must(y.rollBack(r))
	cleaner := y.rebuilder(100)
	cleaner.Keep = time.Millisecond
	time.Sleep(2 * time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	y.must(y.rebuildStore().ChangeRebuilds(t.Context(), projections.ProjectionUsage, func(tx commands.RebuildTx) error {
		now, err := tx.Rebuild(r.ID)
		if err != nil {
			return err
		}
		if err := tx.LockGenerations(now); err != nil {
			return err
		}
		now.State = domain.RebuildPromoted
		if now.Flip, err = tx.Flip(now); err != nil {
			return err
		}
		go func() { done <- cleaner.Run(ctx) }()
		y.until(func() bool { return y.lockWaiters() > 0 })
		return tx.SaveRebuild(*now)
	}))
	y.until(func() bool { return y.lockWaiters() == 0 })
	stop()
	y.must(<-done)
	y.checkAmounts("promoted", map[uuid.UUID]string{tenant: "2026-05:20 "})
}

// A verify has one fold: over several it is refused, and it never reverts a
// concurrent promotion.
func TestP5_ARepairNeverUndoesAPromotion(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	all := y.tenants(2)
	for i, tenant := range all {
		y.append(usageEvent(tenant, fmt.Sprint("a", i), "calls", 10, may))
	}
	y.settle()
	r := y.built(commands.StartRebuild{TenantID: all[0]})
	fixed := map[uuid.UUID]string{all[0]: "2026-05:20 ", all[1]: "2026-05:10 "}
	begun := y.start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: all[0], Verify: true, Repair: true})
	y.must(y.promote(r))
	if end := y.ended(begun, y.runVerifier(y.rebuilder(100))); end.State != domain.RebuildFailed || end.Differs != nil {
		t.Errorf("it ended %s with %v", end.State, end.Differs)
	}
	y.checkAmounts("promoted meanwhile", fixed)
	_, err := y.rebuilds.Start(t.Context(), commands.Request{By: operatorKey}, commands.StartRebuild{Projection: projections.ProjectionUsage, Verify: true, Repair: true, Reason: "test"})
	refusedWith(t, "scope_mixed", err)
	for _, tenant := range all {
		v := y.start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenant, Verify: true, Repair: true})
		if end := y.ended(v, y.runVerifier(y.rebuilder(100))); end.Differs == nil || *end.Differs != 0 {
			t.Errorf("%+v", end)
		}
	}
	y.checkAmounts("verified", fixed)
	v := y.built(commands.StartRebuild{TenantID: all[1], Verify: true})
	refusedWith(t, "rebuild_not_ready", y.promote(v))
}

// A rebuilt period with other events than the live one cannot be shown alone.
func TestP5_APeriodThatIsNotConservedIsNotPromoted(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 10, may), usageEvent(tenant, "b", "calls", 10, may.AddDate(0, 1, 0)))
	y.settle()
	r := y.built(commands.StartRebuild{PeriodKey: "2026-05"})
	y.must(second(y.pool.Exec(t.Context(), `UPDATE usage_aggregates SET amount = 20, event_count = 2, applied_count = 2 WHERE generation = $1`, r.Generation)))
	refusedWith(t, "period_not_conserved", y.promote(r))
	y.checkAmounts("refused", map[uuid.UUID]string{tenant: "2026-06:10 2026-05:10 "})
	_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, r.ID, "all of it, then")
	y.must(err)
	y.must(y.promote(y.built(commands.StartRebuild{})))
	y.checkAmounts("all", map[uuid.UUID]string{tenant: "2026-06:10 2026-05:10 "})
}

// A verify whose generation breaks ends, and says why.
func TestAVerifyThatCannotBeComparedEnds(t *testing.T) {
	y := newFlakyFixture(t)
	y.folds.Usage = y.folds.Usage.With("usage_aggregates/fixed", usage.FoldV1)
	y.deploy()
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "before", "calls", 5, may))
	y.settle()
	r := y.built(commands.StartRebuild{})
	v := y.built(commands.StartRebuild{Verify: true})
	y.must(y.promote(r))
	y.append(usageEvent(tenant, "after", "broken", 1, may))
	y.settle()
	if end := y.ended(v, y.runVerifier(y.rebuilder(10))); end.State != domain.RebuildFailed || end.Failure == "" {
		t.Errorf("%+v", end)
	}
}

// pickyHandler is a read model whose first generation fails on an amount of 7.
type pickyHandler struct{ entitlements.Handler }

func (p *pickyHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	var taken []events.Envelope
	var failed []projections.Failure
	for _, e := range batch {
		if v, err := codec.VerdictOf(&e); g.Number == 1 && e.Subject == events.UsageValidated && err == nil && v.Amount == 7 {
			failed = append(failed, projections.Failure{Event: e, Code: "fold_failed", Reason: "7"})
		} else {
			taken = append(taken, e)
		}
	}
	result, err := p.Handler.Apply(ctx, tx, g, taken)
	result.Failed = append(result.Failed, failed...)
	return result, err
}

// A rebuild fixes events that a read model failed to fold, before it joins and after.
func TestP5_AReadModelIsRepairedBeforeAndAfterItJoins(t *testing.T) {
	y := newRebuildFixture(t)
	y.entitling.Consumer.Handler = &pickyHandler{Handler: entitlements.Handler{Folds: models.DefaultFolds().Entitlements}}
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 7, may))
	y.settle()
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionEntitlements})
	y.append(usageEvent(tenant, "b", "calls", 7, may))
	y.settle()
	y.must(y.promote(r))
	var used string
	y.must(y.pool.QueryRow(t.Context(), `SELECT coalesce(sum(used), 0)::text FROM entitlement_usage WHERE generation = $1`, r.Generation).Scan(&used))
	if used != "14" {
		t.Errorf("used %s, want 14", used)
	}
}
