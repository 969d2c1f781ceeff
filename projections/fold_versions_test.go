package projections_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/series"
)

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
	y := newRebuildFixture(t)
	tenant, total, letters := y.tenants(1)[0], int64(0), int64(0)
	record := func(amount int64) {
		total, letters = total+amount, letters+1
		y.append(usageEvent(tenant, fmt.Sprint("counted ", letters), "calls", amount, may), usageEvent(tenant, fmt.Sprint("rejected ", letters), "unknown", 1, may))
		y.settle()
	}
	record(5)
	y.folds = withSecondVersions(y.folds)
	y.deploy()
	for _, c := range []struct {
		projection, version, sum string
		want                     *int64 // of the live one
		times                    int64  // as much is rebuilt
	}{
		{projections.ProjectionEntitlements, entitlementsNext, `SELECT sum(used)::bigint FROM entitlement_usage`, &total, 2},
		{projections.ProjectionSeries, seriesV2, `SELECT sum(amount)::bigint FROM usage_series`, &total, 2},
		{projections.ProjectionDeadLetters, deadLettersV2, `SELECT count(*) FROM dead_letter_events`, &letters, 0},
	} {
		r := y.rebuilt(commands.StartRebuild{Projection: c.projection})
		if now, err := y.rebuildStore().Rebuild(t.Context(), r.ID); err != nil || now.FoldVersion != c.version {
			t.Fatalf("the rebuild of %s is by %q: %v", c.projection, now.FoldVersion, err)
		}
		check := func(when string) {
			t.Helper()
			for generation, want := range map[int]int64{1: *c.want, r.Generation: *c.want * c.times} {
				var n int64
				y.must(y.pool.QueryRow(t.Context(), c.sum+` WHERE generation = $1 AND tenant_id = $2`, generation, tenant).Scan(&n))
				if n != want {
					t.Errorf("%s, %s: generation %d has %d, want %d", c.projection, when, generation, n, want)
				}
			}
		}
		record(7)
		check("beside it")
		y.must(y.promote(r))
		record(1)
		check("promoted")
	}
}

// A handler never folds a generation by another version than its own.
func TestP5_AnUnknownVersionIsAnErrorOfEveryProjection(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "one", "calls", 5, may))
	y.drain(y.validating)
	for _, p := range y.projections() {
		t.Run(p.Name, func(t *testing.T) {
			tx, err := y.pool.Begin(t.Context())
			y.must(err)
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			_, err = p.Consumer.Handler.Apply(t.Context(), tx, projections.Generation{Number: 1, FoldVersion: p.Name + "/v9"}, []events.Envelope{{Subject: events.UsageValidated, TenantID: tenant}})
			if err == nil || !strings.Contains(err.Error(), p.Name+"/v9") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// A projection that the list does not have is an error everywhere, never another one.
func TestAnUnknownProjectionIsAnError(t *testing.T) {
	if _, err := models.Definition("usage_aggregate"); err == nil {
		t.Error("an unknown projection has a definition")
	}
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.settle()
	r := y.built(commands.StartRebuild{})
	y.must(second(y.pool.Exec(t.Context(), `UPDATE projection_rebuilds SET projection = 'of_tomorrow' WHERE id = $1`, r.ID)))
	_, err := y.reads.Diff(t.Context(), rebuild.DiffQuery{RebuildID: r.ID, TenantID: tenant})
	if refused := (*domain.Error)(nil); err == nil || errors.As(err, &refused) {
		t.Errorf("the difference of an unknown projection: %v", err)
	}
}
