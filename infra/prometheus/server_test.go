package prometheus

import (
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/state"
)

// The state that needs a right is NaN without it, so that no threshold compares with it, and is said to be missing.
func TestTheStateOfTheServerIsRead(t *testing.T) {
	pool, registry := migrated(t), prom.NewRegistry()
	super, err := pgxpool.New(t.Context(), localtest.SuperuserURL(t, pool.Config().ConnString()))
	must.OK(t, err)
	t.Cleanup(super.Close)
	exec := func(sql string, args ...any) {
		t.Helper()
		must.Exec(t, super, sql, args...)
	}
	read := new(state.State)
	m := New(registry, func() *state.State { return read }, nil)
	look := func() {
		t.Helper()
		server, err := state.ReadServer(t.Context(), pool)
		must.OK(t, err)
		read = &state.State{Server: &server}
	}
	is := func(name string, fits func(float64) bool) {
		t.Helper()
		for labels, v := range series(t, registry, "meterplex_"+name) {
			if !fits(v) {
				t.Errorf("%s %s is %v", name, labels, v)
			}
		}
	}
	equal := func(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
	hidden := []string{"wal_bytes", "standby_lag_bytes", "synchronous_standbys_missing"}
	for _, name := range append(hidden, "wal_archived_seconds", "operator_key_expires_seconds", "log_epoch_raised_seconds",
		"certificate_expires_seconds") {
		is(name, math.IsNaN)
	}
	look()
	is("database_monitored", equal(0))
	is("wal_limit_bytes", func(v float64) bool { return v >= 2<<20 })
	is("wal_archived_seconds", math.IsNaN) // the server archives no WAL
	for _, name := range hidden {
		is(name, math.IsNaN)
	}
	exec(`GRANT pg_monitor TO meterplex`)
	defer exec(`REVOKE pg_monitor FROM meterplex`)
	const insertKey = `INSERT INTO api_keys (id, tenant_id, name, prefix, mode, scopes, secret_hash, created_at, expires_at) VALUES ($1, $2,
		'k', 'p', 'op', '{admin}', sha256(convert_to(gen_random_uuid()::text, 'UTF8')), now(), now() + make_interval(days => $3))`
	exec(insertKey, uuid.New(), uuid.New(), 1) // of a tenant: its own concern
	exec(insertKey, uuid.New(), uuid.Nil, 10)
	exec(insertKey, uuid.New(), uuid.Nil, 20)
	exec(insertKey, uuid.New(), uuid.Nil, -1)
	exec(`INSERT INTO log_epochs (partition, epoch, from_position, system_identifier, timeline, started_at, reason, raised_at) VALUES (1, 1,
		1, 1, 1, now(), 'promoted', now() - interval '1 minute'), (2, 1, 1, 1, 1, now(), 'promoted', now() - interval '1 hour')`)
	look()
	is("database_monitored", equal(1))
	is("wal_bytes", func(v float64) bool { return v >= 16<<20 })
	is("standby_lag_bytes", equal(0))
	is("synchronous_standbys_missing", equal(0))
	is("operator_key_expires_seconds", func(v float64) bool { return v > 9*86400 && v <= 10*86400 })
	raised := series(t, registry, "meterplex_log_epoch_raised_seconds")
	if v := raised["promoted "]; v < 59 || v > 1000 || !math.IsNaN(raised["restored "]) {
		t.Errorf("epochs: %v", raised)
	}
	m.CertificateExpires(time.Now().Add(time.Hour))
	is("certificate_expires_seconds", func(v float64) bool { return v > 3000 && v <= 3600 })
}

// An instance that cannot read the database says so: its other gauges keep their values.
func TestAnUnreadableStateAges(t *testing.T) {
	clock, registry := time.Unix(1_800_000_000, 0), prom.NewRegistry()
	read := new(state.State)
	registry.MustRegister(newStateGauges(func() *state.State { return read }, ageGauges(clock, func() time.Time { return clock })))
	age := func() float64 { return series(t, registry, "meterplex_state_age_seconds")[""] }
	clock = clock.Add(90 * time.Second)
	if got := age(); got != 90 {
		t.Errorf("never read: %v s", got)
	}
	read = &state.State{ReadAt: clock}
	if clock = clock.Add(7 * time.Second); age() != 7 {
		t.Errorf("7 s after a read: %v s", age())
	}
}

func TestTheIdentityIsExported(t *testing.T) {
	registry, read := prom.NewRegistry(), new(state.State)
	New(registry, func() *state.State { return read }, nil)
	holds := func() float64 { return series(t, registry, "meterplex_identity_holds")[""] }
	if !math.IsNaN(holds()) {
		t.Errorf("before the first read: %v", holds())
	}
	read = &state.State{Identity: &state.Comparison{Holds: true}}
	if holds() != 1 {
		t.Errorf("it holds: %v", holds())
	}
	read = &state.State{Identity: &state.Comparison{}}
	if holds() != 0 {
		t.Errorf("it is broken: %v", holds())
	}
}
