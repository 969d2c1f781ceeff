package doctor

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// patient is an installation with a fault.
type patient struct {
	*testing.T
	cfg   Config
	super *pgx.Conn
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	url := localtest.Migrated(t, postgres.Migrate)
	super, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, url))
	must.OK(t, err)
	t.Cleanup(func() {
		if err := super.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	p := &patient{T: t, cfg: Config{DatabaseURL: url, Now: time.Now}, super: super}
	p.exec(`SET synchronous_commit = local`)
	return p
}

func (p *patient) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.super.Exec(p.Context(), sql, args...); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

// system changes a setting of the server until the test ends.
func (p *patient) system(name, value string) {
	p.Helper()
	p.exec("ALTER SYSTEM SET " + name + " = " + value)
	p.reload(name, strings.Trim(value, "'"))
	p.Cleanup(func() {
		for _, sql := range []string{"ALTER SYSTEM RESET " + name, "SELECT pg_reload_conf()"} {
			if _, err := p.super.Exec(context.Background(), sql); err != nil {
				p.Error(err)
			}
		}
	})
}

// reload waits until new sessions have the setting.
func (p *patient) reload(name, value string) {
	p.Helper()
	p.exec("SELECT pg_reload_conf()")
	for {
		conn, err := pgx.Connect(p.Context(), p.cfg.DatabaseURL)
		var is string
		if err == nil {
			err = conn.QueryRow(p.Context(), "SELECT current_setting($1)", name).Scan(&is)
			_ = conn.Close(p.Context())
		}
		must.OK(p, err)
		if is == value {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// examine runs one check.
func (p *patient) examine(name string) Finding {
	p.Helper()
	for _, c := range checks() {
		if c.name == name {
			s := &subject{Config: p.cfg, http: http.DefaultClient}
			defer s.close()
			must.OK(p, s.connect(p.Context()))
			return s.examine(p.Context(), &c)
		}
	}
	p.Fatalf("no check %s", name)
	return Finding{}
}

// finds requires a state, and a text in the finding; a problem has a remedy, and no other state has.
func (p *patient) finds(name string, want State, text string) {
	p.Helper()
	f := p.examine(name)
	if f.State != want || !strings.Contains(f.Finding, text) || (f.Remedy == "") != (want == OK) {
		p.Errorf("%s: %s %q, remedy %q; want %s with %q", name, f.State, f.Finding, f.Remedy, want, text)
	}
}

// Each check finds the planted fault, and is ok before it.
func TestEachFaultOfTheTablesIsFound(t *testing.T) {
	tier.AtSize(t)
	const row = `INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin,
		partition, topic, subject, dedupe_key, body)
 VALUES (1, 0, now() - interval '%', now(), gen_random_uuid(), gen_random_uuid(), 1, 1, 3, 1, 1, 'u/1', '{}')`
	const head = `UPDATE log_heads SET position = 1, topic_positions[1] = 1 WHERE partition = 3`
	for name, c := range map[string]struct {
		sound []string // makes the check succeed
		fault []string
		state State
		text  string
	}{
		"api_keys": {nil, []string{`INSERT INTO api_keys (id, tenant_id, name, prefix, mode, scopes, secret_hash, created_at,
			expires_at) VALUES
 (gen_random_uuid(), gen_random_uuid(), 'batch', 'mp_live_x', 'live', '{}', 'a', now(), now() + interval '3 days'), (gen_random_uuid(),
 gen_random_uuid(), 'later', 'mp_live_y', 'live', '{}', 'b', now(), now() + interval '30 days')`},
			Warning, "1 keys expire within 14 days: mp_live_x (batch)"},
		"connections": {nil, []string{`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 6', current_database()); END $$`},
			Failure, "of 6 connections"},
		"collation": {nil, []string{`UPDATE pg_database SET datcollversion = '0' WHERE datname = current_database()`}, Failure,
			"version 0"},
		"autovacuum": {nil, []string{`ALTER TABLE log_heads SET (autovacuum_enabled = false)`}, Warning, "log_heads"},
		"dead_rows": {nil, []string{`CREATE TABLE waste WITH (autovacuum_enabled = false) AS SELECT generate_series(1, 120000) n`,
			`DELETE FROM waste`, `SELECT pg_stat_force_next_flush()`, `SELECT 1`},
			Warning, "waste (120000)"},
		"invalid_indexes": {nil, []string{`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pushes_list'::regclass`}, Failure,
			"pushes_list"},
		"migrations": {nil, []string{`DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`},
			Failure, "this binary knows"},
		"server_lives": {[]string{`INSERT INTO log_epochs (partition, epoch, from_position, system_identifier, timeline, started_at, reason)
			VALUES (1, 90, 1, 1, 1, now(), 'restarted')`},
			[]string{`INSERT INTO log_epochs (partition, epoch, from_position, system_identifier, timeline, started_at, reason) VALUES (1,
				91, 1, 1, 2, now(), 'promoted')`}, Warning, "promoted at"},
		"relay_leases": {[]string{`UPDATE relay_cursors SET owner = 'a', lease_until = now() + interval '1 hour'`},
			[]string{`UPDATE relay_cursors SET lease_until = now() WHERE partition = 7`}, Failure, "1 of 32 partitions have no relay: 7"},
		"outbox": {nil, []string{head, strings.Replace(row, "%", "2 minutes", 1),
			`UPDATE relay_cursors SET attempts = 3, last_error = 'no broker' WHERE partition = 3`},
			Failure, "no broker"},
		"withheld_records": {nil, []string{`INSERT INTO withheld_records (partition, position, topic, tenant_id, dead_letter_id, reason)
			VALUES (4, 17, 1, gen_random_uuid(), gen_random_uuid(), 'too large')`}, Warning, "4-17"},
		"projection_lag": {nil, []string{head, strings.Replace(row, "%", "2 minutes", 1)}, Failure, "lags by 1 events and 2m0"},
		"projections": {nil, []string{`UPDATE projection_generations SET broken = 'a row' WHERE projection = 'usage_aggregates'`},
			Failure, "usage_aggregates generation 1"},
		"dead_letters": {nil, []string{`INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason,
			producer_event_id, feature, source_position, topic, retry_count, first_failed_at, last_failed_at)
 SELECT 1, gen_random_uuid(), 3, gen_random_uuid(), 'AGGREGATION', 'FAILED', 'c', 'r', 'e', 'f', 1, 't', 0, now(), now()
 FROM generate_series(1, 11)`}, Warning, "11 dead letters"},
		"sagas": {[]string{`INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, created_at) VALUES (gen_random_uuid(),
			'period_close', gen_random_uuid(), '2026-05/1', 'wait', 'RUNNING', now(), now())`},
			[]string{`UPDATE sagas SET state = 'DRIFT'`}, Warning, "period_close 2026-05/1 is DRIFT"},
		"pushes": {nil, []string{`INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event,
			key, identifier, counted_at, state, stored_at)
 VALUES (gen_random_uuid(), gen_random_uuid(), 'calls', '2026-05', 1, 0, 5, 'stripe', 'cus_1', 'calls', 'k', 'i', now(), 'FAILED', now())`},
			Warning, "calls 2026-05 is FAILED"},
		"webhooks": {[]string{`INSERT INTO webhooks (id, tenant_id, partition, url, events, status, cursor, created_at, failing_since)
			VALUES (gen_random_uuid(), gen_random_uuid(), 1, 'https://example.com', '{}', 'ENABLED', 0, now(), now())`},
			[]string{`UPDATE webhooks SET failing_since = now() - interval '2 days'`}, Warning, "has failed since"},
		"unsafe_unlogged":     {nil, []string{`ALTER TABLE webhook_attempts SET UNLOGGED`}, Failure, "webhook_attempts is unlogged"},
		"unsafe_grants":       {nil, []string{`GRANT DELETE ON event_log_rows TO meterplex_worker`}, Failure, "may DELETE event_log_rows"},
		"unsafe_row_security": {nil, []string{`ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY`}, Failure, "tenants"},
		"unsafe_owner":        {nil, []string{`ALTER TABLE event_log_rows OWNER TO meterplex_worker`}, Failure, "owner of event_log_rows"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t)
			for _, sql := range c.sound {
				p.exec(sql)
			}
			p.finds(name, OK, "")
			for _, sql := range c.fault {
				p.exec(sql)
			}
			p.finds(name, c.state, c.text)
		})
	}
}

// The bound of an instance decides how many connections suffice.
func TestTheConnectionsOfAnInstanceHaveToBeFree(t *testing.T) {
	p := newPatient(t)
	p.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 30', current_database()); END $$`)
	p.cfg.Connections = 20
	p.finds("connections", OK, "an instance opens up to 20")
	p.cfg.Connections = 31
	p.finds("connections", Warning, "an instance opens up to 31")
	p.cfg.TooFew = errors.New("the roles need 23")
	p.finds("connections", Failure, "the roles need 23")
}

// A backup that is older than an erasure was restored.
func TestAForgottenErasureIsFound(t *testing.T) {
	p := newPatient(t)
	const tenant = "01900000-0000-7000-8000-00000000000a"
	if f := p.examine("erasures"); f.State != Skipped {
		t.Errorf("%+v", f)
	}
	p.cfg.Erasures = t.TempDir()
	must.OK(t, os.WriteFile(p.cfg.Erasures+"/"+tenant+".json",
		[]byte(`{"tenantId":"`+tenant+`","reason":"r","requestedAt":"2026-05-01T00:00:00Z"}`), 0o600))
	p.finds("erasures", OK, "knows all") // not even the tenant
	p.exec(`INSERT INTO tenants (id, name, class, status, created_at) VALUES ('` + tenant + `', 'A', 'small', 'ARCHIVED', now())`)
	p.finds("erasures", Failure, tenant+" is ARCHIVED")
	p.exec(`INSERT INTO erasures (id, tenant_id, saga_id, state, reason, actor, requested_at, up_to, ended_at)
 VALUES (gen_random_uuid(), '` + tenant + `', gen_random_uuid(), 'ERASED', 'r', 'a', now(), 1, now())`)
	p.finds("erasures", OK, "")
	must.OK(t, os.WriteFile(p.cfg.Erasures+"/other.json", []byte(`{`), 0o600))
	p.finds("erasures", Failure, "other.json")
}

// Faults of the whole server.
func TestEachFaultOfTheServerIsFound(t *testing.T) {
	p := newPatient(t)
	p.finds("monitoring_rights", Warning, "no pg_monitor")
	p.finds("synchronous_standby", Warning, "no synchronous standby is set")
	p.finds("slots", OK, "0 slots")
	p.exec(`SELECT pg_create_physical_replication_slot('forgotten', true)`)
	p.finds("slots", Warning, "forgotten")
	p.system("max_slot_wal_keep_size", "0")
	p.finds("retained_wal", OK, "max_slot_wal_keep_size is 0")
	p.exec(`SELECT pg_switch_wal()`)
	p.finds("retained_wal", Warning, "1 slots lose WAL")
	p.exec(`SELECT pg_drop_replication_slot('forgotten')`)
	p.system("autovacuum", "off")
	p.finds("autovacuum", Failure, "autovacuum is off")
	p.exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	p.finds("migrations", Warning, "migration 9999")

	role, err := pgx.Connect(t.Context(), p.cfg.DatabaseURL)
	must.OK(t, err)
	tx, err := role.Begin(t.Context())
	must.OK(t, err)
	if f := p.examine("long_transactions"); f.State != OK || !strings.Contains(f.Finding, "the oldest transaction began") {
		t.Errorf("%+v", f)
	}
	must.OK(t, tx.Rollback(t.Context()))
	must.OK(t, role.Close(t.Context()))

	p.cfg.DatabaseURL = localtest.SuperuserURL(t, p.cfg.DatabaseURL)
	p.finds("monitoring_rights", OK, "")
	p.finds("unsafe_superuser", Failure, "is a superuser")
	p.system("synchronous_standby_names", "'standby'")
	p.finds("synchronous_standby", Failure, "no synchronous standby is connected")
}

// A setting that only a start of the server changes: an archive whose command fails, and a forgotten prepared transaction.
func TestFaultsThatNeedARestartAreFound(t *testing.T) {
	tier.AtSize(t)
	p := newPatient(t)
	p.finds("wal_archive", Warning, "archive_mode is off")
	p.finds("prepared_transactions", OK, "")
	p.exec(`ALTER SYSTEM SET archive_mode = 'on'`)
	p.exec(`ALTER SYSTEM SET archive_command = 'false'`)
	p.exec(`ALTER SYSTEM SET max_prepared_transactions = 1`)
	restart := func() {
		_ = p.super.Close(context.Background())
		err := localtest.Postgres(t).Restart(context.Background())
		if err == nil {
			p.super, err = pgx.Connect(context.Background(), localtest.SuperuserURL(t, p.cfg.DatabaseURL))
		}
		must.OK(t, err)
	}
	restart()
	t.Cleanup(func() {
		for _, name := range []string{"archive_mode", "archive_command", "max_prepared_transactions"} {
			if _, err := p.super.Exec(context.Background(), "ALTER SYSTEM RESET "+name); err != nil {
				t.Error(err)
			}
		}
		restart()
		_ = p.super.Close(context.Background())
	})
	p.exec(`BEGIN`)
	p.exec(`CREATE TABLE forgotten ()`)
	p.exec(`PREPARE TRANSACTION 'payroll'`)
	p.finds("prepared_transactions", Warning, "payroll")
	p.exec(`ROLLBACK PREPARED 'payroll'`)
	p.exec(`SELECT pg_switch_wal()`)
	for p.examine("wal_archive").State != Failure { // the archiver tries soon
		time.Sleep(50 * time.Millisecond)
	}
	p.finds("wal_archive", Failure, "archive_command fails")
}

func TestDatabasesOutOfReachAreFound(t *testing.T) {
	p := newPatient(t)
	p.finds("database_login", OK, "")
	p.finds("database_clock", OK, "")
	p.cfg.Now = func() time.Time { return time.Now().Add(-5 * time.Second) }
	p.finds("database_clock", Warning, "within")
	p.cfg.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	p.finds("database_clock", Failure, "within")
	p.cfg.Now = time.Now

	p.exec(`CREATE ROLE stranger_` + strings.ToLower(t.Name()) + ` LOGIN PASSWORD 'x'`)
	stranger := *p.super.Config()
	p.cfg.DatabaseURL = "postgres://stranger_" + strings.ToLower(t.Name()) + ":x@" + stranger.Host + ":" + itoa(stranger.Port) + "/" +
		stranger.Database + "?sslmode=disable"
	p.finds("database_login", Failure, "cannot set the role meterplex_worker")
	p.finds("sagas", Unknown, "reaching the database")
	p.cfg.DatabaseURL = "postgres://a:b@127.0.0.1:1/c"
	p.finds("database_login", Failure, "reaching the database")
	p.finds("unsafe_fsync", Unknown, "reaching the database")
	p.cfg.DatabaseURL = ""
	if f := p.examine("sagas"); f.State != Skipped || f.Remedy != "set DATABASE_URL" {
		t.Errorf("%+v", f)
	}
}

// TestARefusalOfAPoolerIsNoWrongLogin: PgBouncer refuses startup parameters that it does not know, before any server is asked.
func TestARefusalOfAPoolerIsNoWrongLogin(t *testing.T) {
	at, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, at.Close()) })
	go func() {
		for {
			conn, err := at.Accept()
			if err != nil {
				return
			}
			client := pgproto3.NewBackend(conn, conn)
			_, _ = client.ReceiveStartupMessage()
			client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: role"})
			_ = client.Flush()
			_ = conn.Close()
		}
	}()
	p := &patient{T: t, cfg: Config{DatabaseURL: "postgres://a:b@" + at.Addr().String() + "/c?sslmode=disable", Now: time.Now}}
	p.finds("database_login", Failure, "pooler such as PgBouncer refused the session, not the server the login: unsupported startup "+
		"parameter: role (SQLSTATE 08P01)")
	for _, name := range []string{"database_login", "sagas"} {
		if f := p.examine(name); f.Remedy != postgres.PoolerRemedy {
			t.Errorf("%+v", f)
		}
	}
}

func TestServicesThatAreNotReadyAreFound(t *testing.T) {
	status, body := 200, `{"status":"ready","version":"v1","dependencies":{"database":"ok","kafka":"ok"}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	p := &patient{T: t, cfg: Config{ServiceURL: s.URL, Now: time.Now}}
	p.finds("service", OK, "version v1")
	body = `{"status":"ready","version":"v1","dependencies":{"kafka":"does not answer"}}`
	p.finds("service", Warning, "kafka does not answer")
	status, body = 503, `{"code":"not_ready","detail":"These dependencies do not answer: database"}`
	p.finds("service", Failure, "not ready: These dependencies")
	status, body = 200, `<html>`
	p.finds("service", Failure, "is it a Meterplex service?")
	s.Close()
	p.finds("service", Failure, "no answer")
}

// Every check has a remedy, and is in the document.
func TestEachCheckIsDocumented(t *testing.T) {
	document, err := os.ReadFile("../../../docs/reference/doctor-checks.md")
	must.OK(t, err)
	for _, c := range checks() {
		if c.remedy == "" || c.area == "" || !strings.Contains(string(document), "| `"+c.name+"` |") {
			t.Errorf("%s has no remedy or area, or is not in docs/reference/doctor-checks.md", c.name)
		}
	}
	if n := strings.Count(string(document), "\n| `"); n != len(checks()) {
		t.Errorf("docs/reference/doctor-checks.md lists %d checks instead of %d", n, len(checks()))
	}
}
