package closes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

// dueByFigures is what dueClosesSQL finds, read from each figure.
const dueByFigures = `SELECT DISTINCT t.id, u.period_key, coalesce(c.snapshot, 0) FROM tenants t
 JOIN usage_aggregates u ON u.tenant_id = t.id AND u.generation = live_generation('usage_aggregates', t.id, u.period_key)
 LEFT JOIN LATERAL (SELECT * FROM period_changes c WHERE c.tenant_id = t.id AND c.period_key = u.period_key ORDER BY c.position DESC
 LIMIT 1) c ON true
 WHERE t.close_after_hours IS NOT NULL AND t.status <> 'ARCHIVED' AND (t.id, u.period_key) > ($1, $2)
 AND u.period_end + make_interval(hours => t.close_after_hours) <= now()
  AND (c.change IS NULL OR c.change = 'reopened' AND c.changed_at < u.period_end + make_interval(hours => t.close_after_hours))
 ORDER BY 1, 2 LIMIT $3`

// dueWorld has 60 tenants: of four, one has no policy and one is archived; the others close periods some hours after their end.
type dueWorld struct {
	*testing.T
	conn *pgx.Conn
}

func newDueWorld(t *testing.T) *dueWorld {
	conn, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, localtest.Migrated(t, postgres.Migrate)))
	must.OK(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	w := &dueWorld{t, conn}
	w.exec(`INSERT INTO tenants (id, name, class, status, created_at, close_after_hours)
 SELECT md5(n::text)::uuid, n, 'small', CASE WHEN n % 4 = 1 THEN 'ARCHIVED' ELSE 'ACTIVE' END, now(),
 CASE WHEN n % 4 > 0 THEN 1 + n * 20 END FROM generate_series(1, 60) n`)
	return w
}

func (w *dueWorld) exec(sql string, args ...any) {
	w.Helper()
	must.Exec(w, w.conn, sql, args...)
}

// months writes the figures of months of ten features, in a generation: those of the months between so many months ago.
func (w *dueWorld) months(generation, from, to int, share float64) {
	w.Helper()
	w.exec(`INSERT INTO usage_aggregates (generation, partition, tenant_id, feature, period_key, subscription_id, amount, event_count,
		applied_count, period_start, period_end, last_event_at)
 SELECT $1, 1, t.id, 'f' || f, to_char(m.start, 'YYYY-MM'), t.id, 1, 1, 1, m.start, m.start + interval '1 month', now()
 FROM tenants t, generate_series($2::int, $3::int) n, LATERAL (SELECT date_trunc('month', now(),
 'UTC') - make_interval(months => n) AS start, hashtextextended(t.id::text || n, $1) AS drawn) m, generate_series(1, 10) f
 WHERE abs(m.drawn % 1000) < $4::float8 * 1000`, generation, from, to, share)
}

// others writes a figure of the year before and one of the lifetime for each tenant.
func (w *dueWorld) others() {
	w.Helper()
	w.exec(`INSERT INTO usage_aggregates (generation, partition, tenant_id, feature, period_key, subscription_id, amount, event_count,
		applied_count, period_start, period_end, last_event_at)
 SELECT 1, 1, t.id, 'f', CASE WHEN ever THEN 'lifetime' ELSE to_char(y.start, 'YYYY') END, t.id, 1, 1, 1,
 CASE WHEN NOT ever THEN y.start END, CASE WHEN NOT ever THEN y.start + interval '1 year' END, now()
 FROM tenants t, (VALUES (true), (false)) v (ever), LATERAL (SELECT date_trunc('year', now(), 'UTC') - interval '1 year' AS start) y`)
}

// close closes some of the periods with usage, at least so many months ago.
func (w *dueWorld) close(months int, share float64) {
	w.Helper()
	w.exec(`INSERT INTO period_changes (tenant_id, position, period_key, snapshot, change, changed_at)
 SELECT u.tenant_id, row_number() OVER () + c.n * 1000000 + $1, u.period_key, 1, c.change, now()
 FROM (SELECT DISTINCT tenant_id, period_key FROM usage_aggregates WHERE period_end <= now() - make_interval(months => $1)) u, (VALUES (1,
 'close_requested'), (2, 'closed')) c (n, change)
 WHERE abs(hashtext(u.tenant_id::text || u.period_key) % 1000) < $2::float8 * 1000 ON CONFLICT DO NOTHING`, months, share)
}

// reopen reopens some of the closed periods, every other one before its end.
func (w *dueWorld) reopen(share float64) {
	w.Helper()
	w.exec(`INSERT INTO period_changes (tenant_id, position, period_key, snapshot, change, changed_at)
 SELECT c.tenant_id, c.position + 5000000, c.period_key, c.snapshot, 'reopened',
 CASE WHEN hashtext(c.period_key || c.tenant_id) % 2 = 0 THEN now() ELSE u.period_end - interval '1 day' END
 FROM period_changes c JOIN (SELECT DISTINCT tenant_id, period_key, period_end FROM usage_aggregates) u USING (tenant_id, period_key)
 WHERE c.change = 'closed' AND abs(hashtext(c.tenant_id::text || c.period_key || 'again') % 1000) < $1::float8 * 1000
 ON CONFLICT DO NOTHING`, share)
}

// due returns the periods that are due by a statement, with their last snapshots, in pages.
func (w *dueWorld) due(sql string, limit int) (all []string) {
	w.Helper()
	var tenant uuid.UUID
	var period string
	var snapshot int
	for {
		rows, err := w.conn.Query(w.Context(), sql, tenant, period, limit)
		must.OK(w, err)
		found, err := pgx.ForEachRow(rows, []any{&tenant, &period, &snapshot}, func() error {
			all = append(all, fmt.Sprint(tenant, " ", period, " ", snapshot))
			return nil
		})
		must.OK(w, err)
		if found.RowsAffected() < int64(limit) {
			return all
		}
	}
}

// The look for periods that are due reads no figures of closed periods: each month of the log costs it one probe, of some blocks, and no
// more for more tenants and features.
func TestClosedPeriodsCostTheScheduleAProbe(t *testing.T) {
	tier.AtSize(t)
	w := newDueWorld(t)
	w.exec(`SET plan_cache_mode = force_generic_plan`)
	blocks := func() int {
		w.close(0, 1)
		w.exec(`VACUUM (ANALYZE) usage_aggregates, period_changes, tenants`)
		if plan := localtest.Plan(t, w.conn, dueClosesSQL); strings.Contains(plan, "Seq Scan on usage_aggregates") ||
			strings.Contains(plan, "Seq Scan on period_changes") {
			t.Errorf("a table is read whole:\n%s", plan)
		}
		return localtest.Blocks(t, w.conn, dueClosesSQL, uuid.Nil, "", 100)
	}
	w.months(1, 0, 12, 1)
	w.others()
	before := blocks()
	w.months(1, 13, 36, 1)
	after := blocks()
	t.Logf("%d blocks are read with 12 closed months, %d with 36", before, after)
	if after > before+24*10 {
		t.Errorf("%d blocks are read with 36 closed months, %d with 12", after, before)
	}
}

// The periods that are due are those of the figures that readers see.
func TestDueClosesAreThoseOfTheFigures(t *testing.T) {
	w := newDueWorld(t)
	w.months(1, 0, 30, 0.4)
	w.others()
	w.close(2, 0.7)
	same := func(of string, least int) {
		t.Helper()
		want := w.due(dueByFigures, 1000)
		if len(want) < least {
			t.Errorf("%s: only %d are due", of, len(want))
		}
		for _, limit := range []int{7, 1000} {
			got := w.due(dueClosesSQL, limit)
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || got[i] != want[i] {
					t.Fatalf("%s: in pages of %d, %d are due and not %d; number %d differs", of, limit, len(got), len(want), i)
				}
			}
		}
	}
	same("one generation", 100)
	before := len(w.due(dueByFigures, 1000))
	w.reopen(0.5)
	if after := len(w.due(dueByFigures, 1000)); after < before+20 {
		t.Errorf("%d periods are due after %d before some were reopened", after, before)
	}
	same("some reopened", 100)
	for _, scope := range []string{`md5('2')::uuid, ''`,
		`'00000000-0000-0000-0000-000000000000', to_char(now() - interval '5 months', 'YYYY-MM')`,
		`md5('3')::uuid, to_char(now() - interval '6 months', 'YYYY-MM')`,
		`'00000000-0000-0000-0000-000000000000', ''`} {
		var generation int
		if err := w.conn.QueryRow(t.Context(),
			`INSERT INTO projection_generations (projection, generation, fold_version, tenant_id, period_key)
 SELECT 'usage_aggregates', max(generation) + 1, 'v', `+scope+
				` FROM projection_generations WHERE projection = 'usage_aggregates' RETURNING generation`).Scan(&generation); err != nil {
			t.Fatal(err)
		}
		w.months(generation, 0, 30, 0.5)
		w.exec(`INSERT INTO projection_pointers (projection, tenant_id, period_key, generation, flip) SELECT 'usage_aggregates', `+scope+
			`, $1, max(flip) + 1 FROM projection_pointers WHERE projection = 'usage_aggregates'`, generation)
		same("with a generation of "+scope, 100)
	}
	w.exec(`UPDATE projection_pointers SET undone_flip = flip, live = false WHERE projection = 'usage_aggregates'
		AND flip = (SELECT max(flip) FROM projection_pointers WHERE projection = 'usage_aggregates')`)
	same("rolled back", 100)
	w.close(0, 1)
	same("all closed", 0)
}

// The tenant and its periods are read with the lock. A change sees its own change of a period nevertheless, and other tenants.
func TestAChangeOfPeriodsSeesItsOwnChanges(t *testing.T) {
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: localtest.Migrated(t, postgres.Migrate)})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	log, err := eventlog.New(t.Context(), pool, eventlog.Config{Written: localtest.CheckPayloads(t).Written})
	must.OK(t, err)
	t.Cleanup(log.Close)
	a, b := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	must.Exec(t, pool, `INSERT INTO tenants (id, name, class, status, created_at) SELECT unnest($1::uuid[]), 'Acme', 'small', 'ACTIVE',
		now()`, []uuid.UUID{a, b})
	periods := &Periods{Store: store.New(pool, log, store.Config{})}
	undone := errors.New("undone")
	err = periods.ChangePeriods(t.Context(), a, func(tx billing.PeriodTx) error {
		if of, err := tx.Tenant(a); err != nil || of == nil || of.ID != a {
			t.Errorf("its tenant is %+v, %v", of, err)
		}
		if of, err := tx.Tenant(b); err != nil || of == nil || of.ID != b {
			t.Errorf("the other tenant is %+v, %v", of, err)
		}
		before, err := tx.Periods([]uuid.UUID{a})
		if err != nil || len(before[a].Changes) != 0 {
			t.Errorf("its periods before are %+v, %v", before, err)
		}
		change := domain.PeriodChange{Position: 7, PeriodKey: "2026-05", Snapshot: 1, Change: domain.PeriodCloseRequested}
		if err := tx.SavePeriodChange(a, change, time.Now()); err != nil {
			t.Error(err)
		}
		after, err := tx.Periods([]uuid.UUID{a})
		if list := after[a].Changes; err != nil || len(list) != 1 || list[0] != change {
			t.Errorf("its periods after are %+v, %v", after, err)
		}
		return undone
	})
	if err == nil {
		t.Error("the change is not undone")
	}
	if err := periods.ChangePeriods(t.Context(), uuid.UUID{1}, func(tx billing.PeriodTx) error {
		if of, err := tx.Tenant(uuid.UUID{1}); of != nil || err != nil {
			t.Errorf("an unknown tenant is %+v, %v", of, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
