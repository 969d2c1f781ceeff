package prometheus

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/state"
)

// An account that differs from the projection of the same events is counted once both are at the head; before, it may be
// a difference of time. Each row is compared that one of both has.
func TestDriftOfAccountsIsCounted(t *testing.T) {
	pool := migrated(t)
	super, err := pgxpool.New(t.Context(), localtest.SuperuserURL(t, pool.Config().ConnString())) // the service deletes no account
	must.OK(t, err)
	t.Cleanup(super.Close)
	exec := func(sql string) {
		t.Helper()
		must.Exec(t, super, sql)
	}
	exec(`INSERT INTO features VALUES ('calls', 'Calls', 'QUOTA', 'each'), ('bytes', 'Bytes', 'METERED', 'each')`)
	exec(`INSERT INTO quota_accounts SELECT gen_random_uuid(), 'calls', '2026-05', n, 2 FROM generate_series(1, 2500) n`)
	exec(`INSERT INTO entitlement_usage (generation, tenant_id, feature, period_key, used, held) SELECT 1, tenant_id, feature, period_key,
		used, held FROM quota_accounts`)
	exec(`INSERT INTO entitlement_usage (generation, tenant_id, feature, period_key, used) SELECT 1, gen_random_uuid(), 'bytes', '2026-05',
		n FROM generate_series(1, 1500) n`)
	clock := time.Now()
	drift, registry := newQuotaDrift(func() time.Time { return clock }), prom.NewRegistry()
	read := new(state.State)
	registry.MustRegister(newStateGauges(func() *state.State { return read }, workGauges(nil)))
	turn := func(differ, compared, age float64, what string) {
		t.Helper()
		for range 5 { // of 1000 accounts each
			turn, err := drift.read(t.Context(), pool)
			must.OK(t, err)
			read = &state.State{Accounts: turn}
		}
		for name, want := range map[string]float64{"meterplex_quota_drift": differ, "meterplex_quota_drift_compared": compared,
			"meterplex_quota_drift_age_seconds": age} {
			if n := series(t, registry, name)[""]; n != want {
				t.Errorf("%s: %s is %v, want %v", what, name, n, want)
			}
		}
		clock = clock.Add(time.Minute)
	}
	turn(0, 32, 0, "equal")
	exec(`UPDATE quota_accounts SET used = used + 1 WHERE used IN (1, 1200, 2500)`)
	exec(`UPDATE quota_accounts SET held = 0 WHERE used = 7`)
	exec(`DELETE FROM entitlement_usage WHERE used = 8 AND feature = 'calls'`)
	exec(`DELETE FROM quota_accounts WHERE used IN (9, 10)`)
	turn(7, 32, 0, "changed rows")
	exec(`UPDATE log_heads SET position = position + 20001 WHERE partition < 12`)
	turn(float64(differing(t, pool, 12)), 20, 60, "the projection is behind")
	exec(`UPDATE log_heads SET position = 0`)
	exec(`UPDATE projection_generations SET fold_version = 'entitlement_reads/other' WHERE projection = 'entitlement_reads'`)
	turn(0, 0, 120, "another version")
	exec(`UPDATE projection_generations SET fold_version = 'entitlement_reads/v1' WHERE projection = 'entitlement_reads'`)
	turn(7, 32, 0, "compared again")
	const hold = `BEGIN; SET LOCAL session_replication_role = replica;
 INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, correlation_id, epoch, origin,
 partition, topic, subject, dedupe_key, body)
 SELECT 1, 0, now(), now(), gen_random_uuid(), tenant_id, gen_random_uuid(), 1, 1, get_byte(sha256(convert_to(tenant_id::text, 'UTF8')),
 0) % 32, 10, 60, 'h/1',
  json_build_object('reservationId', '1', 'feature', feature, 'periodKey', period_key, 'featureType', 'QUOTA', 'amount', 5)
  FROM quota_accounts WHERE used = 100;
 UPDATE log_heads SET position = 1 WHERE partition = (SELECT partition FROM event_log_rows); COMMIT`
	exec(hold)
	turn(8, 32, 0, "an event that changed no account")
	exec(`UPDATE quota_accounts SET held = held + 5 WHERE used = 100`)
	turn(7, 32, 0, "an event that the projection has not folded")
}

// differing counts the differing accounts in the partitions from one on.
func differing(t *testing.T, pool *pgxpool.Pool, from int) (n int) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM quota_accounts a FULL JOIN entitlement_usage u USING (tenant_id, feature,
		period_key)
 WHERE feature = 'calls' AND (a.used IS DISTINCT FROM u.used OR a.held IS DISTINCT FROM u.held)
 AND get_byte(sha256(convert_to(tenant_id::text, 'UTF8')), 0) % 32 >= $1`, from).Scan(&n)
	must.OK(t, err)
	return n
}
