package entitlements_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
)

// The crossings of one batch are in the order of their causes, each by the amount of its own period. Usage behind the removal of a
// threshold does not cross it.
func TestThresholdsOfMeteredFeaturesInOneBatch(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("bytes", domain.ResetMonthly))
	of := func(feature, period string, amount int64) {
		s.Append(
			Plain(
				tenant,
				events.UsageValidated,
				events.Counts{},
				events.Validated{RawPosition: 1, EventID: "e", Feature: feature, FeatureType: domain.FeatureMetered,
					PeriodKey: period, Amount: amount, Count: 1, Timestamp: May},
			),
		)
	}
	addThreshold(s.Database, tenant, "", 0, 10)
	removed := addThreshold(s.Database, tenant, "bytes", 0, 15)
	of("bytes", "2026-05", 9)
	of("bytes", "2026-06", 4)
	of("zips", "2026-05", 10)
	of("bytes", "2026-05", 2)
	of("bytes", "2026-06", 7)
	of("apples", "2026-05", 12)
	removeThreshold(s.Database, tenant, removed)
	of("bytes", "2026-05", 5)
	s.Drain(s.Entitling)
	expectCrossings(
		s.Database,
		tenant,
		"zips 10 ( of ) from 0 to 10",
		"bytes 10 ( of ) from 9 to 11",
		"bytes 10 ( of ) from 4 to 11",
		"apples 10 ( of ) from 0 to 12",
	)
	var inOrder string
	s.Must(
		s.Pool.QueryRow(t.Context(), `SELECT string_agg(payload(l)->>'feature', ' ' ORDER BY l.position) FROM event_log_rows l
			WHERE tenant_id = $1 AND subject = $2`,
			tenant, events.ThresholdCrossed).
			Scan(&inOrder),
	)
	if inOrder != "zips bytes bytes apples" {
		t.Errorf("the crossings are in the order %s", inOrder)
	}
}

// addThreshold defines a threshold behind the head.
func addThreshold(w *Database, tenant uuid.UUID, feature string, percent, amount int64) uuid.UUID {
	w.Helper()
	t := domain.Threshold{ID: NewID(), TenantID: tenant, Feature: orNil(feature), Percent: orNil(percent), Amount: orNil(amount)}
	at := w.Append(Plain(tenant, events.ThresholdChanged, events.Counts{}, t.Event(false)))[0]
	w.Must(
		Second(
			w.Pool.Exec(
				context.Background(),
				`INSERT INTO thresholds (id, tenant_id, feature, percent, amount, position, created_at) VALUES ($1, $2, $3, $4, $5, $6,
					now())`,
				t.ID,
				tenant,
				t.Feature,
				t.Percent,
				t.Amount,
				at.Number,
			),
		),
	)
	return t.ID
}

func orNil[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

func removeThreshold(w *Database, tenant, id uuid.UUID) {
	w.Helper()
	at := w.Append(Plain(tenant, events.ThresholdChanged, events.Counts{}, domain.Threshold{ID: id}.Event(true)))[0]
	w.Must(Second(w.Pool.Exec(context.Background(), `UPDATE thresholds SET removed = $2 WHERE id = $1`, id, at.Number)))
}

// recordMetered appends verdicts on usage of a METERED feature, or on corrections.
func recordMetered(w *Database, tenant uuid.UUID, feature string, amounts ...int64) {
	w.Helper()
	var list []events.Pending
	for _, amount := range amounts {
		list = append(
			list,
			Plain(
				tenant,
				events.UsageValidated,
				events.Counts{},
				events.Validated{RawPosition: 1, EventID: "e", Feature: feature, FeatureType: domain.FeatureMetered,
					PeriodKey: "2026-05", Amount: amount, Count: 1, Timestamp: May},
			),
		)
	}
	w.Append(list...)
}

// crossingsOf lists the crossings of a tenant in the order of their causes.
func crossingsOf(w *Database, tenant uuid.UUID) (list []string) {
	w.Helper()
	rows, err := w.Pool.Query(
		context.Background(),
		`SELECT format('%s %s (%s of %s) from %s to %s', payload(l)->>'feature', payload(l)->>'amount', payload(l)->>'percent',
			payload(l)->>'limit',
 payload(l)->>'before', payload(l)->>'after') FROM event_log_rows l JOIN event_log_rows c ON c.event_id = l.causation_id
 WHERE l.tenant_id = $1 AND l.subject = $2 AND c.subject = $3 AND c.position < l.position ORDER BY c.position, l.position`,
		tenant,
		events.ThresholdCrossed,
		events.UsageValidated,
	)
	w.Must(err)
	list, err = pgx.CollectRows(rows, pgx.RowTo[string])
	w.Must(err)
	return list
}

func expectCrossings(w *Database, tenant uuid.UUID, want ...string) {
	w.Helper()
	if got := crossingsOf(w, tenant); !slices.Equal(got, want) {
		w.Errorf("the crossings are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func limited(feature string, limit int64) domain.Grant {
	g := Grant(feature, domain.ResetMonthly)
	g.Limit, g.LimitBehavior = &limit, domain.LimitSoft
	return g
}

// A METERED feature has no account: the projection raises its crossings, once for each period and value, by thresholds and limits as known
// at each event.
func TestThresholdsOfMeteredFeatures(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, limited("bytes", 100), Grant("calls", domain.ResetMonthly))
	recordMetered(s.Database, tenant, "bytes", 10)
	addThreshold(s.Database, tenant, "bytes", 50, 0)
	late := addThreshold(s.Database, tenant, "", 0, 7)
	recordMetered(s.Database, tenant, "bytes", 30, 9, 1, 5) // 7 are used already
	recordMetered(s.Database, tenant, "calls", 6, 1, 1)
	removeThreshold(s.Database, tenant, late)
	recordMetered(s.Database, tenant, "other", 7)
	s.Subscribe(tenant, May, limited("bytes", 200))
	recordMetered(s.Database, tenant, "bytes", -20, 20)
	addThreshold(s.Database, tenant, "", 0, 9)
	recordMetered(s.Database, tenant, "bytes", 40, 10)
	recordMetered(s.Database, tenant, "calls", 1)
	s.Drain(s.Entitling)
	want := []string{
		"bytes 50 (50 of 100) from 49 to 50",
		"calls 7 ( of ) from 6 to 7",
		"bytes 100 (50 of 200) from 95 to 105",
		"calls 9 ( of ) from 8 to 9",
	}
	expectCrossings(s.Database, tenant, want...)
	recordMetered(s.Database, tenant, "bytes", -90, 90)
	s.Drain(s.Entitling)
	expectCrossings(s.Database, tenant, want...)
}

// A rebuild, another generation, a promotion and a rollback cross nothing. The generation that answers raises the next crossing, once.
func TestRebuildsCrossNoThreshold(t *testing.T) {
	y := NewRebuilds(t)
	s := y.Pipeline
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("bytes", domain.ResetMonthly))
	recordMetered(s.Database, tenant, "bytes", 5)
	s.Drain(s.Entitling)
	recordMetered(s.Database, tenant, "bytes", 5) // is counted before the threshold is
	s.Drain(s.Entitling)
	addThreshold(s.Database, tenant, "", 0, 20)
	s.Must(Second(s.Pool.Exec(t.Context(), `UPDATE thresholds SET position = 1 WHERE tenant_id = $1`, tenant)))
	s.Must(
		Second(
			s.Pool.Exec(
				t.Context(),
				`INSERT INTO thresholds (id, tenant_id, feature, percent, amount, position, created_at) VALUES ($1, $2, NULL, NULL, 3, 1, now())`,
				NewID(),
				tenant,
			),
		),
	)
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionEntitlements})
	expectCrossings(s.Database, tenant) // the rebuild folds the event that rises to 3
	recordMetered(s.Database, tenant, "bytes", 8)
	s.Drain(s.Entitling)
	s.Must(y.Promote(r))
	s.Drain(s.Entitling)
	expectCrossings(s.Database, tenant)
	recordMetered(s.Database, tenant, "bytes", 4)
	s.Drain(s.Entitling)
	expectCrossings(s.Database, tenant, "bytes 20 ( of ) from 18 to 22")
	s.Must(y.RollBack(r))
	recordMetered(s.Database, tenant, "bytes", -10, 10)
	s.Drain(s.Entitling)
	expectCrossings(s.Database, tenant, "bytes 20 ( of ) from 18 to 22")
	of := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionEntitlements, TenantID: tenant})
	s.Must(y.Promote(of))
	s.Must(
		Second(s.Pool.Exec(t.Context(), `UPDATE entitlement_usage SET used = used + 15 WHERE generation = 1 AND tenant_id = $1`, tenant)),
	) // it answers no one
	addThreshold(s.Database, tenant, "", 0, 30)
	addThreshold(s.Database, tenant, "", 0, 40)
	recordMetered(s.Database, tenant, "bytes", 9)
	s.Drain(s.Entitling)
	expectCrossings(s.Database, tenant, "bytes 20 ( of ) from 18 to 22", "bytes 30 ( of ) from 22 to 31")
}

// Another limit, and a new threshold, cross the thresholds that the used amount is above already, of QUOTA features, too: once for each
// value, and marked. A limit of 0 is crossed by the first unit.
func TestChangesCrossThresholdsBelowTheUsedAmount(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	grants := func(limit int64) []domain.Grant {
		bytes, calls := Grant("bytes", domain.ResetNever), Grant("calls", domain.ResetNever)
		bytes.Limit, calls.Limit, calls.Type = &limit, &limit, domain.FeatureQuota
		return []domain.Grant{bytes, calls}
	}
	use := func(feature, kind string, amount int64) {
		s.Append(Plain(tenant, events.UsageValidated, events.Counts{}, events.Validated{RawPosition: 1, EventID: "e", Feature: feature,
			FeatureType: kind,
			PeriodKey:   domain.PeriodLifetime, Amount: amount, Count: 1, Timestamp: May}))
	}
	expect := func(want ...string) {
		t.Helper()
		s.Drain(s.Entitling)
		rows, err := s.Pool.Query(t.Context(),
			`SELECT format('%s %s of %s from %s to %s %s', payload(l)->>'feature', payload(l)->>'amount', payload(l)->>'limit',
				payload(l)->>'before', payload(l)->>'after',
 payload(l)->>'reason') FROM event_log_rows l WHERE tenant_id = $1 AND subject = $2 ORDER BY position`, tenant, events.ThresholdCrossed)
		s.Must(err)
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		s.Must(err)
		if !slices.Equal(got, want) {
			t.Errorf("the crossings are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	s.Subscribe(tenant, May, grants(100)...)
	addThreshold(s.Database, tenant, "", 80, 0)
	use("bytes", domain.FeatureMetered, 50)
	use("calls", domain.FeatureQuota, 10)
	expect()
	s.Subscribe(tenant, May, grants(20)...) // 80 % of it are 16
	use("bytes", domain.FeatureMetered, 5)
	all := []string{"bytes 16 of 20 from 50 to 50 limit_changed"}
	expect(all...)
	s.Subscribe(tenant, May, grants(20)...)
	addThreshold(s.Database, tenant, "calls", 0, 7)
	addThreshold(s.Database, tenant, "bytes", 0, 56)
	all = append(all, "calls 7 of 20 from 10 to 10 threshold_defined")
	expect(all...)
	s.Subscribe(tenant, May, grants(0)...)
	all = append(all, "bytes 1 of 0 from 55 to 55 limit_changed", "calls 1 of 0 from 10 to 10 limit_changed")
	expect(all...)
	other := NewID()
	s.Subscribe(other, May, grants(0)...)
	tenant = other
	addThreshold(s.Database, tenant, "bytes", 100, 0)
	use("bytes", domain.FeatureMetered, 3)
	expect("bytes 1 of 0 from 0 to 3 limit_zero")
}
