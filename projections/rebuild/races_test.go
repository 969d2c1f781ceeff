package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// A promotion decides behind the locks of the checkpoints: a generation that its consumer detaches meanwhile is not promoted.
func TestP5_AGenerationDetachedMeanwhileIsNotPromoted(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "a", "calls", 10, May))
	y.Settle()
	r := y.Built(repair.StartRebuild{})
	consumer, err := y.Pool.Begin(t.Context())
	y.Must(err)
	defer func() { _ = consumer.Rollback(context.Background()) }()
	_, err = consumer.Exec(t.Context(), `UPDATE consumer_checkpoints SET joined = false WHERE consumer = $1 AND generation = $2
		AND partition = 31`, r.Consumer, r.Generation)
	y.Must(err)
	done := make(chan error, 1)
	go func() { done <- y.Promote(r) }()
	y.Until(func() bool { return y.LockWaiters() > 0 })
	y.Must(consumer.Commit(t.Context()))
	if refusal := (*domain.Error)(nil); !errors.As(<-done, &refusal) {
		t.Errorf("a generation that is not fed in every partition is promoted: %v", refusal)
	}
	checkAmounts(y, "still the first", map[uuid.UUID]string{tenant: "2026-05:10 "})
}

func TestP5_ARebuiltGenerationIsTheLiveOneByteForByte(t *testing.T) {
	y := NewRebuilds(t)
	tenants := y.Tenants(5)
	y.RecordMixedUsage(tenants, 0, 300)
	y.Settle()
	for name := range Dumps {
		r := y.Start(repair.StartRebuild{Projection: name, Workers: 3})
		y.WhileRebuilding(func() { y.Ready(r) }, y.Rebuilder(20))
		if err := y.SameRows(r, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		y.RecordMixedUsage(tenants, 300, 50) // fed together from here on
		y.Settle()
		if err := y.SameRows(r, 1); err != nil {
			t.Errorf("%s, later: %v", name, err)
		}
	}
}

// A worker that rests after each piece of the log folds every event of it, those on both
// sides of a rest, too.
func TestP5_ARebuildThatRestsFoldsEveryPiece(t *testing.T) {
	y := NewRebuilds(t)
	tenant := y.Tenants(1)[0]
	head := func(at int) {
		y.Must(Second(y.Pool.Exec(t.Context(), `UPDATE log_heads SET position = $2 WHERE partition = $1`, events.PartitionOf(tenant), at)))
	}
	// A piece is 4096 positions: verdicts are before its end, at it, and after it.
	for n, at := range []int{4089, 8185} {
		head(at)
		for i := range 6 {
			y.Append(Usage(tenant, fmt.Sprint("e", n, "/", i), "calls", 1<<i, May))
		}
		y.Settle()
	}
	var around int
	y.Must(y.Pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE partition = $1 AND topic = 2 AND position IN (4096, 4097,
		8192, 8193)`,
		events.PartitionOf(tenant)).Scan(&around))
	if around != 4 {
		t.Fatalf("%d verdicts stand around the rests", around)
	}
	b := y.Rebuilder(1 << 20)
	b.Share, b.Join = 50, 1 // joining does not pause
	r := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage})
	y.WhileRebuilding(func() { y.Ready(r) }, b)
	if err := y.SameRows(r, 1); err != nil {
		t.Error(err)
	}
}

// runVerifier lets a rebuilder end verifies as an instance does.
func runVerifier(y *Rebuilds, b *rebuild.Rebuilder) *rebuild.Rebuilder {
	b.Verify = func(ctx context.Context, r domain.Rebuild) error {
		differs, sample, err := y.Reads.Drift(ctx, r)
		if err == nil {
			err = y.Reads.SaveReport(ctx, r.ID, sample)
		}
		if err != nil {
			return err
		}
		return y.Commands.FinishVerify(ctx, r.ID, differs)
	}
	return b
}

// endOf waits for the end of a verify.
func endOf(y *Rebuilds, r domain.Rebuild, rebuilders ...*rebuild.Rebuilder) (now domain.Rebuild) {
	y.Helper()
	y.WhileRebuilding(func() {
		y.Until(func() bool {
			found, err := y.RebuildStore().Rebuild(context.Background(), r.ID)
			y.Must(err)
			now = *found
			return !now.Open()
		})
	}, rebuilders...)
	return now
}

// The cleaner waits for a promotion of the very generation that it was about to
// drop, and then leaves it.
func TestP5_AGenerationPromotedMeanwhileIsNotDropped(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "a", "calls", 10, May))
	y.Settle()
	r := y.Built(repair.StartRebuild{})
	y.Must(y.Promote(r))
	y.Must(y.RollBack(r))
	cleaner := y.Rebuilder(100)
	cleaner.Keep = time.Millisecond
	time.Sleep(2 * time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	y.Must(y.RebuildStore().ChangeRebuilds(t.Context(), projections.ProjectionUsage, func(tx repair.RebuildTx) error {
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
		y.Until(func() bool { return y.LockWaiters() > 0 })
		return tx.SaveRebuild(*now)
	}))
	y.Until(func() bool { return y.LockWaiters() == 0 })
	stop()
	y.Must(<-done)
	checkAmounts(y, "promoted", map[uuid.UUID]string{tenant: "2026-05:20 "})
}

// A verify has one fold: over several it is refused, and it never reverts a
// concurrent promotion.
func TestP5_ARepairNeverUndoesAPromotion(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	all := y.Tenants(2)
	for i, tenant := range all {
		y.Append(Usage(tenant, fmt.Sprint("a", i), "calls", 10, May))
	}
	y.Settle()
	r := y.Built(repair.StartRebuild{TenantID: all[0]})
	fixed := map[uuid.UUID]string{all[0]: "2026-05:20 ", all[1]: "2026-05:10 "}
	begun := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage, TenantID: all[0], Verify: true, Repair: true})
	y.Must(y.Promote(r))
	if end := endOf(y, begun, runVerifier(y, y.Rebuilder(100))); end.State != domain.RebuildFailed || end.Differs != nil {
		t.Errorf("it ended %s with %v", end.State, end.Differs)
	}
	checkAmounts(y, "promoted meanwhile", fixed)
	_, err := y.Commands.Start(t.Context(), commands.Request{By: OperatorKey}, repair.StartRebuild{Projection: projections.ProjectionUsage,
		Verify: true, Repair: true, Reason: "test"})
	RefusedWith(t, "scope_mixed", err)
	for _, tenant := range all {
		v := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenant, Verify: true, Repair: true})
		if end := endOf(y, v, runVerifier(y, y.Rebuilder(100))); end.Differs == nil || *end.Differs != 0 {
			t.Errorf("%+v", end)
		}
	}
	checkAmounts(y, "verified", fixed)
	v := y.Built(repair.StartRebuild{TenantID: all[1], Verify: true})
	RefusedWith(t, "rebuild_not_ready", y.Promote(v))
}

// A rebuilt period with other events than the live one cannot be shown alone.
func TestP5_APeriodThatIsNotConservedIsNotPromoted(t *testing.T) {
	y := NewRebuilds(t)
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "a", "calls", 10, May), Usage(tenant, "b", "calls", 10, May.AddDate(0, 1, 0)))
	y.Settle()
	r := y.Built(repair.StartRebuild{PeriodKey: "2026-05"})
	y.Must(Second(y.Pool.Exec(t.Context(), `UPDATE usage_aggregates SET amount = 20, event_count = 2, applied_count = 2
		WHERE generation = $1`, r.Generation)))
	RefusedWith(t, "period_not_conserved", y.Promote(r))
	checkAmounts(y, "refused", map[uuid.UUID]string{tenant: "2026-06:10 2026-05:10 "})
	_, err := y.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, r.ID, "all of it, then")
	y.Must(err)
	y.Must(y.Promote(y.Built(repair.StartRebuild{})))
	checkAmounts(y, "all", map[uuid.UUID]string{tenant: "2026-06:10 2026-05:10 "})
}

// A verify whose generation breaks ends, and says why.
func TestAVerifyThatCannotBeComparedEnds(t *testing.T) {
	y := newFlakyFixture(t)
	y.Folds.Usage = y.Folds.Usage.With("usage_aggregates/fixed", usage.FoldV1)
	y.Deploy()
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "before", "calls", 5, May))
	y.Settle()
	r := y.Built(repair.StartRebuild{})
	v := y.Built(repair.StartRebuild{Verify: true})
	y.Must(y.Promote(r))
	y.Append(Usage(tenant, "after", "broken", 1, May))
	y.Settle()
	if end := endOf(y, v, runVerifier(y, y.Rebuilder(10))); end.State != domain.RebuildFailed || end.Failure == "" {
		t.Errorf("%+v", end)
	}
}

// pickyHandler is a read model whose first generation fails on an amount of 7.
type pickyHandler struct{ entitlements.Handler }

func (p *pickyHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result,
	error) {
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
	y := NewRebuilds(t)
	y.Entitling.Consumer.Handler = &pickyHandler{Handler: entitlements.Handler{Folds: models.DefaultFolds().Entitlements}}
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "a", "calls", 7, May))
	y.Settle()
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionEntitlements})
	y.Append(Usage(tenant, "b", "calls", 7, May))
	y.Settle()
	y.Must(y.Promote(r))
	var used string
	y.Must(y.Pool.QueryRow(t.Context(), `SELECT coalesce(sum(used), 0)::text FROM entitlement_usage WHERE generation = $1`, r.Generation).
		Scan(&used))
	if used != "14" {
		t.Errorf("used %s, want 14", used)
	}
}
