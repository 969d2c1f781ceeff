package eventlog

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/must"
)

func TestP6_TheServiceCannotAlterTheLog(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1))
	for _, sql := range []string{
		`UPDATE event_log SET body = '{}'`, `UPDATE event_log_rows SET body = '{}'`,
		`DELETE FROM event_log`, `DELETE FROM event_log_rows`, `TRUNCATE event_log`, `TRUNCATE event_log_rows`,
		`DROP TABLE event_log`, `ALTER TABLE event_log NO FORCE ROW LEVEL SECURITY`,
		`DELETE FROM log_heads`, `UPDATE log_epochs SET epoch = 9`, `DELETE FROM subscription_history`,
		`UPDATE subscription_history SET snapshot = NULL`,
		`DELETE FROM idempotency_answers`, `UPDATE idempotency_answers SET body = NULL`, `DELETE FROM replays`, `DELETE FROM replay_units`,
		`DELETE FROM rebuild_units`,
	} {
		if _, err := pool.Exec(t.Context(), sql); postgres.SQLState(err) != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	var role string
	var super, owner bool
	err := pool.QueryRow(t.Context(), `SELECT current_user, (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user),
 pg_get_userbyid(relowner) = current_user FROM pg_class WHERE relname = 'event_log'`).Scan(&role, &super, &owner)
	if err != nil || role != postgres.WorkerRole || super || owner {
		t.Fatalf("the service runs as %s (superuser %v, owner %v): %v", role, super, owner, err)
	}
}

func TestP9_ATenantsRoleSeesItsOwnRowsOnly(t *testing.T) {
	l, pool, _ := openLog(t)
	mine, other := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	submit(t, l, mine, usageEvent(mine, "a", 1))
	submit(t, l, other, usageEvent(other, "a", 1), usageEvent(other, "b", 1))
	asTenant := func(id string, check func(tx pgx.Tx)) {
		t.Helper()
		tx, err := pool.Begin(t.Context())
		must.OK(t, err)
		defer tx.Rollback(t.Context())
		must.Exec(t, tx, `SET LOCAL ROLE meterplex_tenant`)
		if id != "" {
			must.Exec(t, tx, `SELECT set_config('meterplex.tenant_id', $1, true)`, id)
		}
		check(tx)
	}
	rows := func(tx pgx.Tx) (n int) {
		must.OK(t, tx.QueryRow(t.Context(), `SELECT count(*) FROM event_log`).Scan(&n))
		return n
	}
	asTenant(mine.String(), func(tx pgx.Tx) {
		if n := rows(tx); n != 1 {
			t.Errorf("a tenant sees %d rows of its 1", n)
		}
	})
	asTenant("", func(tx pgx.Tx) {
		if n := rows(tx); n != 0 {
			t.Errorf("without a tenant set, %d rows are seen", n)
		}
	})
	for _, sql := range []string{`SELECT count(*) FROM event_log_rows`, `SELECT count(*) FROM api_keys`,
		`INSERT INTO usage_aggregates SELECT * FROM usage_aggregates`, `UPDATE tenants SET name = 'x'`} {
		asTenant(mine.String(), func(tx pgx.Tx) {
			if _, err := tx.Exec(t.Context(), sql); postgres.SQLState(err) != "42501" {
				t.Errorf("as a tenant, %s: %v", sql, err)
			}
		})
	}
}
