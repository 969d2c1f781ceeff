package http_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// relation is a table or view in the database's catalogue.
type relation struct {
	name, tenant    string // tenant is the column with the tenant of a row, or ""
	guarded         bool   // by row level security, also for its owner
	readable        bool   // by the role that reads for tenants
	written, erased string // privileges beyond SELECT of that role and of the one that appends
}

// relations reads the database's catalogue, so that tables of later migrations are
// included.
func (m *isolationFixture) relations() (list []relation) {
	m.Helper()
	rows, err := m.pool.Query(m.Context(), `
SELECT c.relname, coalesce((SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
   AND (a.attname = 'tenant_id' OR c.relname = 'tenants' AND a.attname = 'id')), ''),
 c.relrowsecurity AND c.relforcerowsecurity,
 has_any_column_privilege('meterplex_tenant', c.oid, 'SELECT'),
 concat_ws(' ', (SELECT string_agg(p, ' ') FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
 WHERE has_table_privilege('meterplex_tenant', c.oid, p)),
  (SELECT string_agg(p, ' ') FROM unnest(ARRAY['INSERT', 'UPDATE', 'REFERENCES']) p WHERE has_any_column_privilege('meterplex_tenant',
  c.oid, p))),
 concat_ws(' ', (SELECT string_agg(p, ' ') FROM unnest(ARRAY['UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
 WHERE has_table_privilege('meterplex_worker', c.oid, p)),
  (SELECT 'column' WHERE has_any_column_privilege('meterplex_worker', c.oid, 'UPDATE')))
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY 1`)
	m.must(err)
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relation, err error) {
		return r, row.Scan(&r.name, &r.tenant, &r.guarded, &r.readable, &r.written, &r.erased)
	})
	m.must(err)
	if len(list) < 20 {
		m.Fatalf("only %d relations", len(list))
	}
	return list
}

// Relations without tenant rows that tenants' reads may see: the catalogue, and the
// progress of the log and its readers.
func sharedByAll() []string {
	return []string{"consumer_checkpoints", "features", "feature_groupings", "plans", "log_epochs", "log_heads", "log_origins",
		"log_vocabularies", "outbox_publications", "relay_cursors", "goose_db_version"}
}

// asTenant runs a query with the tenants' role and that tenant setting; nil leaves it
// unset. denied reports that the role may not read the relation.
func (m *isolationFixture) asTenant(tenant *string, query string) (n int, denied bool, err error) {
	m.Helper()
	tx, err := m.pool.Begin(m.Context())
	m.must(err)
	defer tx.Rollback(m.Context())
	_, err = tx.Exec(m.Context(), `SET LOCAL ROLE meterplex_tenant`)
	m.must(err)
	if tenant != nil {
		_, err = tx.Exec(m.Context(), `SELECT set_config('meterplex.tenant_id', $1, true)`, *tenant)
		m.must(err)
	}
	err = tx.QueryRow(m.Context(), query).Scan(&n)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42501" {
		return 0, true, nil
	}
	return n, false, err
}

// TestP9_DefinerFunctionsShowATenantItsOwnRows, as all else that the roles of the service can reach in the database.
func TestP9_DefinerFunctionsShowATenantItsOwnRows(t *testing.T) {
	m := newIsolationFixture(t)
	for name, check := range map[string]func(*isolationFixture, *testing.T){
		"functions": (*isolationFixture).definerFunctions, "tables": (*isolationFixture).everyTable,
		"guards": (*isolationFixture).tablesAreGuarded,
		"P6":     (*isolationFixture).recordedEventsStay, "connections": (*isolationFixture).connectionsKeepNothing,
		"residencies": (*isolationFixture).residencies,
	} {
		t.Run(name, func(t *testing.T) {
			mine, service := *m, *m.testService
			mine.testService, service.TB = &service, t
			check(&mine, t)
		})
	}
}

// definerFunctions: row level security does not bind a
// function that runs as its owner. Each such function is listed here and must check its
// caller itself.
func (m *isolationFixture) definerFunctions(t *testing.T) {
	known := []string{"broker_place", "caused_positions", "consumer_standing", "erase_answers", "erase_events", "expire_answers",
		"expire_rebuild_units", "expire_replays",
		"expire_reservations", "failed_verdicts", "failing_positions", "log_positions", "position_of_event",
		"recorded_residencies", "recorded_time", "recorded_until", "rejected_positions", "usage_stream", "usage_walk",
		"verdict_positions"}
	rows, err := m.pool.Query(t.Context(),
		`SELECT proname || CASE WHEN array_to_string(proconfig, ' ') LIKE '%search_path=%' THEN '' ELSE ' without a search path' END
  || CASE WHEN EXISTS (SELECT FROM aclexplode(coalesce(proacl, acldefault('f', proowner)))
  WHERE grantee = 0) THEN ' for everybody' ELSE '' END
 FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef ORDER BY 1`)
	m.must(err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	m.must(err)
	m.same("functions that run as their owner", names, known)
	nobody, empty := newID().String(), ""
	for _, shown := range m.shownByFunctions() {
		for name, c := range map[string]struct {
			as   *string
			sees bool
		}{"A": {&m.a.id, true}, "B": {&m.b.id, false}, "nobody": {&nobody, false}, "unset": {nil, false}, "empty": {&empty, false}} {
			if n, denied, err := m.asTenant(c.as, shown); err != nil || denied || n > 0 != c.sees {
				t.Errorf("%s is shown %d rows of A by %s (denied %v), %v", name, n, shown, denied, err)
			}
		}
	}
}

// everyTable reads every relation in SQL: as another tenant,
// without a tenant, and with an invalid tenant.
func (m *isolationFixture) everyTable(t *testing.T) {
	m.ingest(m.b, batch(event("of-B", nil)))
	m.fold()
	const platform = "00000000-0000-0000-0000-000000000000"
	seen := 0
	for _, r := range m.relations() {
		if !r.readable {
			if _, denied, _ := m.asTenant(&m.a.id, `SELECT count(*) FROM `+r.name); !denied {
				t.Errorf("%s is read, and ought not to be", r.name)
			}
			continue
		}
		if r.tenant == "" {
			if !slices.Contains(sharedByAll(), r.name) {
				t.Errorf("tenants read %s, which names no tenant: is it for all of them?", r.name)
			}
			continue
		}
		if !r.guarded {
			t.Errorf("row level security of %s is not forced", r.name)
		}
		own := fmt.Sprintf(`SELECT count(*) FROM %s WHERE %s = '%s'`, r.name, r.tenant, m.a.id)
		others := fmt.Sprintf(`SELECT count(*) FROM %s WHERE %s <> '%s'`, r.name, r.tenant, m.a.id)
		if strings.HasPrefix(r.name, "projection_") { // rows for all tenants are visible to all
			others += fmt.Sprintf(` AND %s <> '%s'`, r.tenant, platform)
		}
		var all int
		m.must(m.pool.QueryRow(t.Context(), own).Scan(&all))
		seen += min(all, 1)
		sees := func(name string, as *string, query string, want int) {
			if n, _, err := m.asTenant(as, query); n != want || err != nil && name != "an odd tenant" {
				t.Errorf("%s: %s sees %d rows instead of %d, %v", r.name, name, n, want, err)
			}
		}
		sees("A, of its own,", &m.a.id, own, all)
		sees("A, of others,", &m.a.id, others, 0)
		nobody, empty := newID().String(), ""
		for name, as := range map[string]*string{"B": &m.b.id, "nobody": &nobody, "unset": nil, "empty": &empty} {
			sees(name, as, own, 0)
		}
		for _, odd := range []string{"x", m.a.id + " OR true", "%"} {
			sees("an odd tenant", &odd, own, 0)
		}
	}
	if seen < 6 {
		t.Errorf("A has rows in %d tables only: the rest shows nothing", seen)
	}
}

// tablesAreGuarded fails for a new table with a tenant column until row
// level security is forced on it, or it is listed here and tenants' reads cannot see it.
func (m *isolationFixture) tablesAreGuarded(t *testing.T) {
	unseen := []string{"event_log_rows", "projection_rebuilds", "replays", "inbox", "outbox_events", "withheld_records",
		"reporting_usage", "reporting_closed_usage", "reporting_adjustments", "reporting_dead_letters"}
	for _, r := range m.relations() {
		if r.tenant != "" && !r.guarded && (r.readable || !slices.Contains(unseen, r.name)) {
			t.Errorf("%s names a tenant by %s, and row level security is not forced", r.name, r.tenant)
		}
		if r.written != "" {
			t.Errorf("the role that reads for tenants may %s in %s", r.written, r.name)
		}
	}
}

// recordedEventsStay compares the privileges of the service's role
// with the purpose of each table.
func (m *isolationFixture) recordedEventsStay(t *testing.T) {
	appendOnly := []string{"event_log", "event_log_rows", "log_origins", "log_vocabularies", "log_epochs", "log_identity",
		"subscription_history", "idempotency_answers", "withheld_records"}
	found := 0
	for _, r := range m.relations() {
		if slices.Contains(appendOnly, r.name) {
			if found++; r.erased != "" {
				t.Errorf("the service may %s in %s", r.erased, r.name)
			}
		}
		for _, never := range []string{"TRUNCATE", "TRIGGER", "REFERENCES"} {
			if strings.Contains(r.erased, never) {
				t.Errorf("the service may %s %s", never, r.name)
			}
		}
	}
	m.same("tables that only grow", found, len(appendOnly))
	var owned, creates int
	m.must(m.pool.QueryRow(t.Context(), `SELECT
 (SELECT count(*) FROM pg_class WHERE pg_get_userbyid(relowner) IN ('meterplex_worker', 'meterplex_tenant')),
 (SELECT count(*) FROM unnest(ARRAY['meterplex_worker', 'meterplex_tenant']) r WHERE has_schema_privilege(r, 'public', 'CREATE')
 OR has_database_privilege(r, current_database(), 'CREATE'))`).Scan(&owned, &creates))
	if owned+creates > 0 {
		t.Errorf("the service's roles own %d relations, and %d of them may make some", owned, creates)
	}
}

// shownByFunctions returns statements that count A's rows by functions which read the log for tenants.
func (m *isolationFixture) shownByFunctions() []string {
	m.Helper()
	tenant := uuid.MustParse(m.a.id)
	var verdict int64
	var period string
	m.must(m.pool.QueryRow(m.Context(),
		`SELECT position, body ->> 5 FROM event_log_rows WHERE tenant_id = $1 AND subject = 2 ORDER BY position LIMIT 1`, tenant).
		Scan(&verdict,
			&period))
	failed, err := codec.EncodePayload(events.AggregationFailed, events.Failed{SourcePosition: verdict, Stage: events.StageAggregation,
		Code: "fold_failed", Reason: "a secret of A", Payload: json.RawMessage(`{}`)})
	m.must(err)
	m.must(pgx.BeginFunc(m.Context(), m.pool, func(tx pgx.Tx) error {
		_, err := m.log.AppendTx(m.Context(), tx, []events.Pending{{EventID: newID(), Subject: events.AggregationFailed, TenantID: tenant,
			DedupeKey: "d/isolation", Actor: events.Actor{Type: "system", ID: events.GroupAggregator},
			Residency:  events.ResidencyUnspecified,
			OccurredAt: time.Now(),
			Payload:    failed}})
		return err
	}))
	at := fmt.Sprintf("%d::smallint, '%s'", events.PartitionOf(tenant), tenant)
	return []string{
		fmt.Sprintf(`SELECT cardinality(positions) FROM usage_walk(%s, 1000000, 0, '', NULL, NULL, 100, 100000)`, at),
		fmt.Sprintf(`SELECT count(*) FROM usage_stream(%s, 'secret-of-A', 0, NULL, 0, 1000000, NULL, NULL, false, 10)`, at),
		fmt.Sprintf(`SELECT count(*) FROM usage_stream(%s, 'rejected-of-A', 0, NULL, 0, 1000000, '{3}', NULL, true, 10)`, at),
		fmt.Sprintf(`SELECT count(*) FROM rejected_positions('%s', 1000000, 100)`, tenant),
		fmt.Sprintf(`SELECT count(*) FROM verdict_positions(%s, 'api_calls', '%s', 0, 1000000, 100)`, at, period),
		fmt.Sprintf(`SELECT count(*) FROM failed_verdicts('%s', ARRAY[%d::bigint])`, tenant, verdict),
	}
}

// connectionsKeepNothing: the next user of a connection does not
// inherit the tenant.
func (m *isolationFixture) connectionsKeepNothing(t *testing.T) {
	for range 3 {
		for _, p := range []*account{m.a, m.b} {
			m.want(200, call{method: "GET", path: "/api/v1/usage/aggregates", key: p.key})
			m.want(200, call{method: "GET", path: "/api/v1/usage/events?status=PENDING", key: p.key})
			m.refused(m.do(call{method: "GET", path: "/api/v1/usage/events/none-such", key: p.key}), 404, "not_found")
			m.refused(m.do(call{method: "GET", path: "/api/v1/usage/events?cursor=x", key: p.key}), 400, "cursor_invalid")
		}
	}
	idle := m.pool.AcquireAllIdle(t.Context())
	if len(idle) == 0 {
		t.Error("no connection was used")
	}
	for _, conn := range idle {
		var role, tenant string
		m.must(conn.QueryRow(t.Context(), `SELECT current_user, coalesce(current_setting('meterplex.tenant_id', true), '')`).Scan(&role,
			&tenant))
		if role != "meterplex_worker" || tenant != "" {
			t.Errorf("a connection goes on as %s, tenant %q", role, tenant)
		}
		conn.Release()
	}
}

// residencies: tenants share origins. The tenants' role can
// read the residency of an origin only by the place of one of the tenant's own events.
func (m *isolationFixture) residencies(t *testing.T) {
	if _, denied, err := m.asTenant(&m.a.id, `SELECT count(residency) FROM log_origins`); !denied {
		t.Errorf("a tenant reads the residencies of all, %v", err)
	}
	if n, denied, err := m.asTenant(&m.a.id, `SELECT count(actor_id) FROM log_origins`); denied || err != nil || n == 0 {
		t.Errorf("a tenant cannot read its own events' actors: %d, %v", n, err)
	}
	home := m.a.partition()
	shown := fmt.Sprintf(`SELECT count(r) FROM recorded_residencies(array_fill(%d::smallint, ARRAY[1000]), ARRAY(SELECT generate_series(1,
		1000)::bigint)) r`,
		home)
	own := fmt.Sprintf(`SELECT count(*) FROM event_log_rows WHERE partition = %d AND tenant_id = '%s' AND position <= 1000`, home, m.a.id)
	var want int
	m.must(m.pool.QueryRow(t.Context(), own).Scan(&want))
	nobody, empty := newID().String(), ""
	for name, c := range map[string]struct {
		as   *string
		sees int
	}{"A": {&m.a.id, want}, "nobody": {&nobody, 0}, "unset": {nil, 0}, "empty": {&empty, 0}} {
		if n, denied, err := m.asTenant(c.as, shown); err != nil || denied || n != c.sees {
			t.Errorf("%s is shown the residencies of %d of A's %d events (denied %v), %v", name, n, want, denied, err)
		}
	}
	if b := m.b.partition(); b != home {
		if n, _, err := m.asTenant(&m.b.id, shown); n != 0 || err != nil {
			t.Errorf("B is shown the residencies of %d of A's events, %v", n, err)
		}
	}
	var all int
	m.must(m.pool.QueryRow(t.Context(), shown).Scan(&all))
	if all < want || want == 0 {
		t.Errorf("the service sees the residencies of %d events, A alone has %d", all, want)
	}
}
