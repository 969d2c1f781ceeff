package periods_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/closes"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/periods"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/verify"
)

// closeFixture is a tenant whose periods are closed, on a fixture that rebuilds, and decides over dead letters.
type closeFixture struct {
	*Rebuilds
	deciding  *Letters
	periods   *billing.Periods
	tenant    uuid.UUID
	partition int16
	broken    *consume.Runner // cannot fold the feature "panics"
	frozen    map[string]string
}

// june is after the end of the period that the tests close.
var june = May.AddDate(0, 1, 2)

func newCloseFixture(t testing.TB) *closeFixture {
	f := closeFixtureOf(NewRebuilds(t))
	f.newTenant()
	return f
}

func closeFixtureOf(y *Rebuilds) *closeFixture {
	f := &closeFixture{Rebuilds: y}
	f.deciding = LettersOf(f.Pipeline)
	f.deployFold(usage.V1, usage.FoldV1)
	f.Must(Second(f.Pool.Exec(context.Background(), `INSERT INTO features (lookup_key, name, type, unit, group_by)
 SELECT f, f, 'METERED', '', '{}' FROM unnest('{calls,panics,ever,unknown,tokens,broken}'::text[]) f ON CONFLICT DO NOTHING`)))
	return f
}

// periodsOf returns the command on a store.
func (f *closeFixture) periodsOf(s *store.Store) *billing.Periods {
	return &billing.Periods{Store: &closes.Periods{Store: s, Figures: f.Folds.PeriodFigures()}, Now: func() time.Time {
		return june
	}, NewID: NewID, Logger: slog.New(slog.DiscardHandler)}
}

// deployFold adds a version of the fold of usage.
func (f *closeFixture) deployFold(version string, fold usage.Fold) {
	f.Folds.Usage = f.Folds.Usage.With(version, fold)
	f.Deploy()
	f.periods = f.periodsOf(f.Store)
	broken := f.Aggregating.Consumer
	broken.Handler = PoisonedHandler{Handler: broken.Handler}
	f.broken, _ = f.Runner(broken)
}

// newTenant goes on with a new tenant.
func (f *closeFixture) newTenant() {
	f.useTenant(NewID())
	f.grant()
}

func (f *closeFixture) useTenant(tenant uuid.UUID) {
	f.tenant, f.partition, f.frozen = tenant, events.PartitionOf(tenant), map[string]string{}
}

// grant gives the tenant a new subscription.
func (f *closeFixture) grant(more ...domain.Grant) {
	f.Subscribe(f.tenant, May, append(more, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly),
		Account("tokens", domain.ResetMonthly))...)
}

// record records usage of May.
func (f *closeFixture) record(id, feature string, amount int64) events.Position {
	f.Helper()
	return f.Append(Usage(f.tenant, id, feature, amount, May))[0]
}

// flow lets all events take effect, by the aggregator that cannot fold one feature.
func (f *closeFixture) flow() {
	f.Helper()
	f.Drain(f.deciding.Executing, f.Validating, f.broken, f.Lettering)
}

// request requests the close of May.
func (f *closeFixture) request(despite ...string) billing.RequestedClose {
	f.Helper()
	c, err := f.periods.Close(context.Background(), commands.Request{By: Billing},
		billing.ClosePeriod{TenantID: f.tenant, PeriodKey: "2026-05", Reason: "test", Despite: despite})
	f.Must(err)
	return c
}

// kinds are the kinds of sagas of periods.
func (f *closeFixture) kinds() map[string]commands.SagaKind {
	c, r := f.periods.CloseKind(), f.periods.ReconcileKind()
	return map[string]commands.SagaKind{c.Name: c, r.Name: r}
}

// advance runs the steps of a saga, as the runner does, until it ends or waits.
func (f *closeFixture) advance(id uuid.UUID) *domain.Saga {
	f.Helper()
	queue := &store.Sagas{Store: f.Store}
	if s, err := (&store.Catalogue{Pool: f.Pool}).Saga(context.Background(), id); err == nil && s != nil && !s.Open() {
		return s
	}
	for {
		f.Must(Second(f.Pool.Exec(context.Background(), `UPDATE sagas SET next_at = '2000-01-01' WHERE id = $1 AND ended_at IS NULL`, id)))
		lease := NewID()
		s, err := queue.LeaseSaga(context.Background(),
			commands.SagaSteps([]commands.SagaKind{f.periods.CloseKind(), f.periods.ReconcileKind()}), lease, time.Minute)
		f.Must(err)
		if s == nil || s.ID != id {
			f.Fatalf("the saga %s is not due: %+v", id, s)
		}
		result, err := f.kinds()[s.Kind].Run(context.Background(), s)
		f.Must(err)
		s, err = queue.SettleSaga(context.Background(), id, lease, func(s *domain.Saga, now time.Time) { s.Apply(result, now) })
		f.Must(err)
		if !s.Open() || result.Wait > 0 {
			return s
		}
	}
}

// close closes May, which must not wait.
func (f *closeFixture) close(despite ...string) billing.RequestedClose {
	f.Helper()
	c := f.request(despite...)
	f.flow()
	if s := f.advance(c.ID); s.State != domain.SagaCompleted {
		f.Fatalf("the close is %s: %v %s", s.State, s.Missing, s.LastError)
	}
	f.check()
	return c
}

// waits requires that a close waits for conditions.
func (f *closeFixture) waits(c billing.RequestedClose, missing ...string) {
	f.Helper()
	if s := f.advance(c.ID); !s.Open() || s.State == domain.SagaDrift || !slices.Equal(s.Missing, missing) {
		f.Errorf("the close is %s and waits for %v, want %v", s.State, s.Missing, missing)
	}
}

// ends requires that a close ends: partially if conditions were missing.
func (f *closeFixture) ends(c billing.RequestedClose) {
	f.Helper()
	if s := f.advance(c.ID); s.State != domain.SagaCompleted || (s.Outcome == domain.SagaSuccess) != (len(s.Missing) == 0) {
		f.Fatalf("the close is %s: %v %s", s.State, s.Missing, s.LastError)
	}
	f.check()
}

func (f *closeFixture) reopen() billing.ReopenedPeriod {
	f.Helper()
	r, err := f.periods.Reopen(context.Background(), commands.Request{By: Billing}, f.tenant, "2026-05", "test")
	f.Must(err)
	return r
}

// decide decides adjustments by their ids.
func (f *closeFixture) decide(decision string, ids ...string) {
	f.Helper()
	in := billing.DecideAdjustments{Decision: decision, Reason: "test"}
	for _, id := range ids {
		in.IDs = append(in.IDs, uuid.MustParse(id))
	}
	_, err := f.periods.Decide(context.Background(), commands.Request{By: Billing}, in)
	f.Must(err)
}

// reconcile runs the reconciliations that are open.
func (f *closeFixture) reconcile() {
	f.Helper()
	rows, err := f.Pool.Query(context.Background(), `SELECT id FROM sagas WHERE kind = $1 AND ended_at IS NULL ORDER BY id`,
		billing.SagaReconcile)
	f.Must(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	f.Must(err)
	for _, id := range ids {
		if s := f.advance(id); s.State != domain.SagaCompleted {
			f.Errorf("a reconciliation is %s: %s", s.State, s.LastError)
		}
	}
}

// lateUsage sets the tenant's policy from the head on.
func (f *closeFixture) lateUsage(policy string) {
	f.Helper()
	at := f.Append(Plain(f.tenant, events.TenantChanged, events.Counts{}, events.Tenant{ID: f.tenant, Name: "T", Class: "small",
		Status: "ACTIVE", DataResidency: events.ResidencyUnspecified, Mode: "live", LateUsage: policy}))[0]
	f.Must(Second(f.Pool.Exec(context.Background(),
		`INSERT INTO tenant_policies (tenant_id, from_position, late_usage) VALUES ($1, $2, $3)`, f.tenant, at.Number, policy)))
}

// lines describes the lines of the last snapshot: feature frozen/count; several subscriptions are added up.
func (f *closeFixture) lines() string {
	f.Helper()
	return f.text(`SELECT coalesce(string_agg(l, ' ' ORDER BY l COLLATE "C"), '')
		FROM (SELECT feature || ' ' || sum(amount) || '/' || sum(event_count) AS l
 FROM period_lines l WHERE tenant_id = $1 AND snapshot = (SELECT max(snapshot) FROM period_snapshots WHERE tenant_id = $1)
 GROUP BY feature) s`, f.tenant)
}

// adjusted describes the adjustments, in the order of the log.
func (f *closeFixture) adjusted() string {
	f.Helper()
	return f.text(`SELECT coalesce(string_agg(snapshot || ' ' || kind || ' ' || amount || '/' || event_count || ' ' || state, ', '
		ORDER BY position), '') FROM adjustments WHERE tenant_id = $1`, f.tenant)
}

// billable describes the lines of the present snapshot: what is frozen, approved and waived, and the live figure.
func (f *closeFixture) billable() string {
	f.Helper()
	return f.text(`SELECT coalesce(string_agg(format('%s frozen %s approved %s waived %s net %s', feature, frozen, approved, waived, net),
		', ' ORDER BY feature), '') FROM (`+periods.Lines+`) l`, f.tenant, f.partition, "", 0)
}

func (f *closeFixture) text(sql string, args ...any) (text string) {
	f.Helper()
	f.Must(f.Pool.QueryRow(context.Background(), sql, args...).Scan(&text))
	return text
}

func (f *closeFixture) want(what, got, want string) {
	f.Helper()
	if got != want {
		f.Errorf("%s: %q, want %q", what, got, want)
	}
}

// check requires the equation of closed periods, that no snapshot has changed since the last check, and the independent fold of meterplex
// verify.
func (f *closeFixture) check() {
	f.Helper()
	f.checkEquation()
	f.checkFrozen()
}

// checkEquation requires that each row is the frozen figure and its adjustments.
func (f *closeFixture) checkEquation() {
	f.Helper()
	f.want("unreconciled", f.text(`SELECT coalesce(string_agg(format('%s %s: net %s, frozen %s, difference %s in %s', period_key, feature,
		net, frozen, unreconciled, unreconciled_count), '; '), '') FROM (`+
		periods.Lines+`) l WHERE present AND (unreconciled <> 0 OR unreconciled_count <> 0)`, f.tenant, f.partition, "", 0), "")
}

// checkFrozen requires that no snapshot has changed since the last check, and that the checks of closed periods by
// meterplex verify hold.
func (f *closeFixture) checkFrozen() {
	f.Helper()
	rows, err := f.Pool.Query(context.Background(),
		`SELECT period_key || ' ' || snapshot, s::text || (SELECT coalesce(string_agg(l::text, ' ' ORDER BY l.feature, l.subscription_id),
			'')
 FROM period_lines l WHERE (l.tenant_id, l.period_key, l.snapshot) = (s.tenant_id, s.period_key, s.snapshot)) FROM period_snapshots s
 WHERE tenant_id = $1`, f.tenant)
	f.Must(err)
	var name, all string
	_, err = pgx.ForEachRow(rows, []any{&name, &all}, func() error {
		if was, known := f.frozen[name]; known && was != all {
			f.Errorf("the snapshot %s was\n%s\nand is\n%s", name, was, all)
		}
		f.frozen[name] = all
		return nil
	})
	f.Must(err)
	checks, err := verify.Run(context.Background(), verify.Config{DatabaseURL: f.URL, NoTopics: "not read",
		Partitions: []int16{f.partition}, Now: time.Now, Progress: func(string) {}})
	f.Must(err)
	for _, c := range checks {
		if strings.HasPrefix(c.Name, "P8 ") && (c.Holds == nil || !*c.Holds) {
			f.printLog()
			f.Errorf("%s: %s", c.Name, c.Figures)
		}
	}
}

// printLog writes the tenant's log to the output of the test.
func (f *closeFixture) printLog() {
	for _, e := range f.Read(0, f.partition, 0) {
		if e.TenantID == f.tenant {
			f.Logf("%d %v %s %.300s", e.Position.Number, e.Subject, e.DedupeKey, e.Payload)
		}
	}
}

// retry retries the failed dead letter of an event, up to the consumers of verdicts.
func (f *closeFixture) retry(id string) {
	f.Helper()
	f.Must(f.deciding.RetryNow(f.tenant, f.deciding.LettersByEvent(f.tenant, events.StatusFailed)[id]))
	f.Drain(f.deciding.Executing)
}
