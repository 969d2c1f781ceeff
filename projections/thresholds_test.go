package projections_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
)

// threshold defines a threshold behind the head.
func (w *logFixture) threshold(tenant uuid.UUID, feature string, percent, amount int64) uuid.UUID {
	w.Helper()
	t := domain.Threshold{ID: newID(), TenantID: tenant, Feature: feature, Percent: percent, Amount: amount}
	at := w.append(plainEvent(tenant, events.ThresholdChanged, events.Counts{}, t.Event(false)))[0]
	w.must(second(w.pool.Exec(context.Background(), `INSERT INTO thresholds (id, tenant_id, feature, percent, amount, position, created_at) VALUES ($1, $2, $3, $4, $5, $6, now())`,
		t.ID, tenant, feature, percent, amount, at.Number)))
	return t.ID
}

func (w *logFixture) removeThreshold(tenant, id uuid.UUID) {
	w.Helper()
	at := w.append(plainEvent(tenant, events.ThresholdChanged, events.Counts{}, events.Threshold{ThresholdID: id, Amount: 1, Removed: true}))[0]
	w.must(second(w.pool.Exec(context.Background(), `UPDATE thresholds SET removed = $2 WHERE id = $1`, id, at.Number)))
}

// metered appends verdicts on usage of a METERED feature, or on corrections.
func (w *logFixture) metered(tenant uuid.UUID, feature string, amounts ...int64) {
	w.Helper()
	var list []events.Pending
	for _, amount := range amounts {
		list = append(list, plainEvent(tenant, events.UsageValidated, events.Counts{}, events.Validated{RawPosition: 1, EventID: "e", Feature: feature, FeatureType: domain.FeatureMetered,
			PeriodKey: "2026-05", Amount: amount, Count: 1, Timestamp: may}))
	}
	w.append(list...)
}

// crossings lists the crossings of a tenant in the order of their causes.
func (w *logFixture) crossings(tenant uuid.UUID) (list []string) {
	w.Helper()
	rows, err := w.pool.Query(context.Background(), `SELECT format('%s %s (%s of %s) from %s to %s', payload(l)->>'feature', payload(l)->>'amount', payload(l)->>'percent', payload(l)->>'limit',
 payload(l)->>'before', payload(l)->>'after') FROM event_log_rows l JOIN event_log_rows c ON c.event_id = l.causation_id
 WHERE l.tenant_id = $1 AND l.subject = $2 AND c.subject = $3 AND c.position < l.position ORDER BY c.position, l.position`, tenant, events.ThresholdCrossed, events.UsageValidated)
	w.must(err)
	list, err = pgx.CollectRows(rows, pgx.RowTo[string])
	w.must(err)
	return list
}

func (w *logFixture) expectCrossings(tenant uuid.UUID, want ...string) {
	w.Helper()
	if got := w.crossings(tenant); !slices.Equal(got, want) {
		w.Errorf("the crossings are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func limited(feature string, limit int64) domain.Grant {
	g := grant(feature, domain.ResetMonthly)
	g.Limit, g.LimitBehavior = &limit, domain.LimitSoft
	return g
}

// A METERED feature has no account: the projection raises its crossings, once for each period and value, by thresholds and limits as known at each event.
func TestThresholdsOfMeteredFeatures(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, limited("bytes", 100), grant("calls", domain.ResetMonthly))
	s.metered(tenant, "bytes", 10)
	s.threshold(tenant, "bytes", 50, 0)
	late := s.threshold(tenant, "", 0, 7)
	s.metered(tenant, "bytes", 30, 9, 1, 5) // 7 are used already
	s.metered(tenant, "calls", 6, 1, 1)
	s.removeThreshold(tenant, late)
	s.metered(tenant, "other", 7)
	s.subscribe(tenant, may, limited("bytes", 200))
	s.metered(tenant, "bytes", -20, 20)
	s.threshold(tenant, "", 0, 9)
	s.metered(tenant, "bytes", 40, 10)
	s.metered(tenant, "calls", 1)
	s.drain(s.entitling)
	want := []string{"bytes 50 (50 of 100) from 49 to 50", "calls 7 ( of ) from 6 to 7", "bytes 100 (50 of 200) from 95 to 105", "calls 9 ( of ) from 8 to 9"}
	s.expectCrossings(tenant, want...)
	s.metered(tenant, "bytes", -90, 90)
	s.drain(s.entitling)
	s.expectCrossings(tenant, want...)
}

// However the log is cut into batches, the crossings are the same.
func TestThresholdsDoNotDependOnBatches(t *testing.T) {
	localtest.FewChecks(t, 60)
	s := newPipelineFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		tenant, used, seen, want := newID(), int64(0), map[string]bool{}, []string{}
		var thresholds []int64
		for range rapid.IntRange(1, 10).Draw(rt, "events") {
			if len(thresholds) == 0 || rapid.IntRange(0, 3).Draw(rt, "kind") == 0 {
				thresholds = append(thresholds, rapid.Int64Range(1, 40).Draw(rt, "threshold"))
				s.threshold(tenant, "bytes", 0, thresholds[len(thresholds)-1])
				continue
			}
			amount := rapid.Int64Range(-20, 20).Draw(rt, "amount")
			s.metered(tenant, "bytes", amount)
			for i, value := range thresholds {
				if key := fmt.Sprint(i); used < value && value <= used+amount && !seen[key] {
					seen[key] = true
					want = append(want, fmt.Sprintf("bytes %d ( of ) from %d to %d", value, used, used+amount))
				}
			}
			used += amount
		}
		s.entitling.Consumer.MaxPerPartition = rapid.IntRange(1, 30).Draw(rt, "batch")
		s.drain(s.entitling)
		if got := s.crossings(tenant); !slices.Equal(got, want) {
			rt.Fatalf("the crossings are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Whether the commit or only its answer was lost, the batch is read again and crosses once.
func TestThresholdsOfMeteredFeaturesOnceIfACommitIsLost(t *testing.T) {
	for name, lost := range localtest.LostCommits {
		t.Run(name, func(t *testing.T) {
			s := newPipelineFixture(t)
			tenant := tenantIn(6)
			s.threshold(tenant, "", 0, 5)
			s.metered(tenant, "bytes", 4)
			s.drain(s.entitling)
			s.metered(tenant, "bytes", 4)
			c, url := localtest.NewCutter(t, s.url)
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, ApplicationName: "cut"})
			s.must(err)
			t.Cleanup(pool.Close)
			s.entitling.Pool = pool
			ahead, err := s.entitling.Ahead(t.Context())
			s.must(err)
			lost(c).Store(1)
			if err := s.entitling.ReadUpTo(t.Context(), ahead); !errors.Is(err, consume.ErrCommitUnknown) || c.Reached.Load() != 1 {
				t.Fatalf("a commit without an answer returned %v, after %d cuts", err, c.Reached.Load())
			}
			s.drain(s.entitling)
			s.expectCrossings(tenant, "bytes 5 ( of ) from 4 to 8")
		})
	}
}

// A rebuild, another generation, a promotion and a rollback cross nothing. The generation that answers raises the next crossing, once.
func TestRebuildsCrossNoThreshold(t *testing.T) {
	y := newRebuildFixture(t)
	s := y.pipelineFixture
	tenant := newID()
	s.subscribe(tenant, may, grant("bytes", domain.ResetMonthly))
	s.metered(tenant, "bytes", 5)
	s.drain(s.entitling)
	s.metered(tenant, "bytes", 5) // is counted before the threshold is
	s.drain(s.entitling)
	s.threshold(tenant, "", 0, 20)
	s.must(second(s.pool.Exec(t.Context(), `UPDATE thresholds SET position = 1 WHERE tenant_id = $1`, tenant)))
	s.must(second(s.pool.Exec(t.Context(), `INSERT INTO thresholds (id, tenant_id, feature, percent, amount, position, created_at) VALUES ($1, $2, '', 0, 3, 1, now())`, newID(), tenant)))
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionEntitlements})
	s.expectCrossings(tenant) // the rebuild folds the event that rises to 3
	s.metered(tenant, "bytes", 8)
	s.drain(s.entitling)
	s.must(y.promote(r))
	s.drain(s.entitling)
	s.expectCrossings(tenant)
	s.metered(tenant, "bytes", 4)
	s.drain(s.entitling)
	s.expectCrossings(tenant, "bytes 20 ( of ) from 18 to 22")
	s.must(y.rollBack(r))
	s.metered(tenant, "bytes", -10, 10)
	s.drain(s.entitling)
	s.expectCrossings(tenant, "bytes 20 ( of ) from 18 to 22")
	of := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionEntitlements, TenantID: tenant})
	s.must(y.promote(of))
	s.must(second(s.pool.Exec(t.Context(), `UPDATE entitlement_usage SET used = used + 15 WHERE generation = 1 AND tenant_id = $1`, tenant))) // it answers no one
	s.threshold(tenant, "", 0, 30)
	s.threshold(tenant, "", 0, 40)
	s.metered(tenant, "bytes", 9)
	s.drain(s.entitling)
	s.expectCrossings(tenant, "bytes 20 ( of ) from 18 to 22", "bytes 30 ( of ) from 22 to 31")
}
