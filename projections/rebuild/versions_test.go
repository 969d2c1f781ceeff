package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/usage"
)

// moving is the fold v1, except that it counts the verdicts of one figure in another.
func moving(from, to usage.Key) usage.Fold {
	return func(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
		key, delta, err := usage.FoldV1(e, v)
		if key.Feature == from.Feature && key.PeriodKey == from.PeriodKey {
			key.Feature, key.PeriodKey = to.Feature, to.PeriodKey
			if to.TenantID != uuid.Nil {
				key.TenantID = to.TenantID
			}
		}
		return key, delta, err
	}
}

// moves are the folds that a release must not have.
func moves() map[string]usage.Fold {
	june := usage.Key{Feature: "calls", PeriodKey: "2026-06"}
	return map[string]usage.Fold{
		"feature": moving(june, usage.Key{Feature: "moved", PeriodKey: "2026-06"}),
		"period":  moving(june, usage.Key{Feature: "calls", PeriodKey: "2026-05"}),
		"tenant":  moving(june, usage.Key{TenantID: NewID(), Feature: "calls", PeriodKey: "2026-06"}),
	}
}

const movedReason = "counts the verdict in another figure"

// P5: a version of the fold that counts a verdict in another feature or period than the verdict names is
// refused: by a rebuild of all figures or of one period, and beside the live version.
func TestP5_ARebuildThatMovesAVerdictFails(t *testing.T) {
	for name, fold := range moves() {
		t.Run(name, func(t *testing.T) {
			y := NewRebuilds(t)
			y.Versions("usage_aggregates/moved", fold)
			tenant := y.Tenants(1)[0]
			y.Append(Usage(tenant, "a", "calls", 1, May))
			y.Settle()
			aside := y.Built(repair.StartRebuild{})
			y.Append(Usage(tenant, "b", "calls", 2, May.AddDate(0, 1, 0)))
			y.Settle()
			RefusedWith(t, "generation_broken", y.Promote(aside))
			_, err := y.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, aside.ID, "broken")
			y.Must(err)
			for _, period := range []string{"", "2026-05"} {
				r := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage, PeriodKey: period})
				y.WhileRebuilding(func() { y.Until(func() bool { return y.State(r) == domain.RebuildFailed }) }, y.Rebuilder(5))
				now, err := y.RebuildStore().Rebuild(t.Context(), r.ID)
				if y.Must(err); !strings.Contains(now.Failure, movedReason) {
					t.Errorf("period %q: the rebuild failed with %q", period, now.Failure)
				}
			}
			checkAmounts(y, "the live one", map[uuid.UUID]string{tenant: "2026-06:2 2026-05:1 "})
		})
	}
}

// P12: the aggregator parks a verdict that its fold would count in another figure, and the figure of no
// other name has it.
func TestP12_AMovedVerdictIsParked(t *testing.T) {
	for name, fold := range moves() {
		t.Run(name, func(t *testing.T) {
			y := NewRebuilds(t)
			y.Folds.Usage = y.Folds.Usage.With(usage.V1, fold)
			y.Deploy()
			tenant := y.Tenants(1)[0]
			y.Append(Usage(tenant, "a", "calls", 1, May), Usage(tenant, "b", "calls", 2, May.AddDate(0, 1, 0)))
			y.Settle()
			e, err := y.Reads.Explain(
				t.Context(),
				TenantViewer(tenant),
				usage.ExplainQuery{TenantID: tenant, Feature: "calls", PeriodKey: "2026-06", Limit: 10, Rejected: true},
			)
			if err != nil || !e.Adds || len(e.Data) != 0 || len(e.LeftOut) != 1 || e.LeftOut[0].Code != projections.CodeFoldFailed ||
				!strings.Contains(e.LeftOut[0].Reason, movedReason) {
				t.Errorf("%+v %v", e, err)
			}
			checkAmounts(y, "the live one", map[uuid.UUID]string{tenant: "2026-05:1 "})
		})
	}
}

const (
	entitlementsNext = projections.ProjectionEntitlements + "/next"
	deadLettersV2    = projections.ProjectionDeadLetters + "/v2"
	seriesV2         = projections.ProjectionSeries + "/v2"
)

// entitlementsDoubled is a later version of the test: usage counts twice.
func entitlementsDoubled(s *entitlements.State, e *events.Envelope) error {
	if e.Subject != events.UsageValidated {
		return entitlements.FoldV1(s, e)
	}
	v, err := codec.VerdictOf(e)
	if err != nil {
		return err
	}
	s.Used(e.TenantID, v.Feature, v.PeriodKey, 2*v.Amount)
	return nil
}

// deadLettersWithoutRejections is dead_letter_events/v2 of the test: rejections make no row.
func deadLettersWithoutRejections(row *deadletters.Row, id uuid.UUID, e *events.Envelope) (*deadletters.Row, error) {
	if e.Subject == events.UsageRejected {
		return nil, nil
	}
	return deadletters.FoldV1(row, id, e)
}

// seriesDoubled is usage_series/v2 of the test: usage counts twice.
func seriesDoubled(s *series.State, e *events.Envelope) error {
	return errors.Join(series.FoldV1(s, e), series.FoldV1(s, e))
}

// withSecondVersions has a newer version of three folds.
func withSecondVersions(f models.Folds) models.Folds {
	f.Entitlements = f.Entitlements.With(entitlementsNext, entitlementsDoubled)
	f.DeadLetters = f.DeadLetters.With(deadLettersV2, deadLettersWithoutRejections)
	f.Series = f.Series.With(seriesV2, seriesDoubled)
	return f
}

// Each generation is folded by its own version, in the rebuild and afterwards beside the live one.
func TestP5_ReadModelsAreRebuiltByANewVersionBesideTheLiveOne(t *testing.T) {
	y := NewRebuilds(t)
	tenant, total, letters := y.Tenants(1)[0], int64(0), int64(0)
	record := func(amount int64) {
		total, letters = total+amount, letters+1
		y.Append(
			Usage(tenant, fmt.Sprint("counted ", letters), "calls", amount, May),
			Usage(tenant, fmt.Sprint("rejected ", letters), "unknown", 1, May),
		)
		y.Settle()
	}
	record(5)
	y.Folds = withSecondVersions(y.Folds)
	y.Deploy()
	for _, c := range []struct {
		projection, version, sum string
		want                     *int64 // of the live one
		times                    int64  // as much is rebuilt
	}{
		{projections.ProjectionEntitlements, entitlementsNext, `SELECT sum(used)::bigint FROM entitlement_usage`, &total, 2},
		{projections.ProjectionSeries, seriesV2, `SELECT sum(amount)::bigint FROM usage_series`, &total, 2},
		{projections.ProjectionDeadLetters, deadLettersV2, `SELECT count(*) FROM dead_letter_events`, &letters, 0},
	} {
		r := y.Rebuilt(repair.StartRebuild{Projection: c.projection})
		if now, err := y.RebuildStore().Rebuild(t.Context(), r.ID); err != nil || now.FoldVersion != c.version {
			t.Fatalf("the rebuild of %s is by %q: %v", c.projection, now.FoldVersion, err)
		}
		check := func(when string) {
			t.Helper()
			for generation, want := range map[int]int64{1: *c.want, r.Generation: *c.want * c.times} {
				var n int64
				y.Must(y.Pool.QueryRow(t.Context(), c.sum+` WHERE generation = $1 AND tenant_id = $2`, generation, tenant).Scan(&n))
				if n != want {
					t.Errorf("%s, %s: generation %d has %d, want %d", c.projection, when, generation, n, want)
				}
			}
		}
		record(7)
		check("beside it")
		y.Must(y.Promote(r))
		record(1)
		check("promoted")
	}
}

// A handler never folds a generation by another version than its own.
func TestP5_AnUnknownVersionIsAnErrorOfEveryProjection(t *testing.T) {
	y := NewRebuilds(t)
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "one", "calls", 5, May))
	y.Drain(y.Validating)
	for _, p := range y.Projections() {
		t.Run(p.Name, func(t *testing.T) {
			tx, err := y.Pool.Begin(t.Context())
			y.Must(err)
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			_, err = p.Consumer.Handler.Apply(
				t.Context(),
				tx,
				projections.Generation{Number: 1, FoldVersion: p.Name + "/v9"},
				[]events.Envelope{{Subject: events.UsageValidated, TenantID: tenant}},
			)
			if err == nil || !strings.Contains(err.Error(), p.Name+"/v9") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// A binary that lacks a generation's fold version does not start, and a running one
// folds no event by another version.
func TestP5_ABinaryHoldsEveryVersionInUse(t *testing.T) {
	y := NewRebuilds(t)
	oldAll, oldConsumer := y.Projections(), y.Aggregating.Consumer
	y.Must(projections.CheckVersions(t.Context(), y.Pool, oldAll))
	y.Versions(Doubled, FoldDoubled)
	tenant := y.Tenants(1)[0]
	y.Settle()
	y.Built(repair.StartRebuild{})
	err := projections.CheckVersions(t.Context(), y.Pool, oldAll)
	if err == nil {
		t.Error("a binary without the version would start")
	}
	t.Log(err)
	old, _ := y.Runner(oldConsumer)
	y.Append(Usage(tenant, "one", "calls", 1, May))
	y.Drain(y.Validating)
	if err := old.Process(t.Context(), y.Topic(events.TopicUsageValidated, events.PartitionOf(tenant), 0)); err == nil {
		t.Error("it folded beside a generation that it cannot feed")
	}
	y.Drain(y.Aggregating)
	if got := amountsOf(y, tenant); got != "2026-05:1 " {
		t.Error(got)
	}
}
