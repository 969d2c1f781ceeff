package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
)

// asNextRelease gives the faulty binary the changes of a release that only adds: columns on the
// log, its heads and the figures, an index, and a version of a fold.
const asNextRelease = "METERPLEX_FAULT_RELEASE=next"

func nextRelease() []edit {
	const models, ours = "projections/models/models.go", "projections.Versions[usage.Fold]{{Name: usage.V1, Fold: usage.FoldV1}}"
	const next = `fault.Of("METERPLEX_FAULT_RELEASE", ` + ours +
		`, projections.Versions[usage.Fold]{{Name: usage.V1, Fold: usage.FoldV1}, {Name: "usage_aggregates/v2", Fold: usage.FoldV1}})`
	const doubling = `fault.Of("METERPLEX_FAULT_FOLD", ` + next +
		`, projections.Versions[usage.Fold]{{Name: usage.V1, Fold: usage.FoldV1}, {Name: "usage_aggregates/v2", Fold: doubledFold}})`
	const files, embedded = "migrations/migrations.go", "//go:embed *.sql\nvar FS embed.FS\n"
	return []edit{
		{File: "migrations/9001_next_columns.sql", New: nextColumns},
		{File: "migrations/9002_next_index.sql", New: nextIndex},
		{File: files, Old: "import \"embed\"\n", New: "import (\n\t\"embed\"\n\n\t\"github.com/meterplex/meterplex/events/fault\"\n)\n"},
		{File: files, Old: embedded, New: "//go:embed 0*.sql\nvar own embed.FS\n\n//go:embed *.sql\nvar next embed.FS\n\nvar FS = " +
			"fault.Of(\"METERPLEX_FAULT_RELEASE\", own, next)\n"},
		{File: models, Old: ours, New: doubling},
		{File: "projections/models/doubled.go", New: doubledFold},
		{File: models, Old: "import (\n", New: "import (\n\t\"github.com/meterplex/meterplex/events/fault\"\n"},
	}
}

// doubledFold is a version of the fold that counts another amount than the present one.
const doubledFold = `package models

import (
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/usage"
)

func doubledFold(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e, v)
	delta.Amount *= 2
	return key, delta, err
}
`

// Each migration pauses in its middle for as long as a database setting says. The tables are
// altered in the order in which the service locks them (docs/how-to/upgrade.md): with the log before
// its heads, each try under load ended in a deadlock, for minutes.
const (
	nextPause   = `SELECT pg_sleep(coalesce(nullif(current_setting('next.pause', true), ''), '0')::float8);`
	nextColumns = `-- +goose Up
-- Older instances go on beside it: they name their columns.
CREATE TABLE next_notes (note text);
` + nextPause + `
ALTER TABLE log_heads ADD COLUMN next_count bigint NOT NULL DEFAULT 0;
ALTER TABLE event_log ADD COLUMN next_note text DEFAULT 'none';
ALTER TABLE usage_aggregates ADD COLUMN next_seen bigint NOT NULL DEFAULT 0;
`
	nextIndex = `-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it makes an index and nothing else.
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS next_by_time;
CREATE INDEX CONCURRENTLY next_by_time ON usage_aggregates (tenant_id, last_event_at);
` + nextPause + `
RESET lock_timeout;
`
)

// migrations describes the state of the next release's migrations in the database.
func migrations(w *deployment) (state string) {
	w.t.Helper()
	err := w.sql.QueryRow(w.t.Context(), `SELECT format('%s, notes %s, index %s', (SELECT max(version_id) FROM goose_db_version
		WHERE is_applied),
 CASE WHEN to_regclass('next_notes') IS NULL THEN 'no' ELSE 'yes' END,
 coalesce((SELECT CASE WHEN indisvalid THEN 'yes' ELSE 'half' END FROM pg_index WHERE indexrelid = to_regclass('next_by_time')), 'no'))`).
		Scan(&state)
	must.OK(w.t, err)
	return state
}

// setPause sets the pause in the middle of the next release's migrations.
func setPause(w *deployment, seconds int) {
	w.t.Helper()
	if _, err := w.sql.Exec(w.t.Context(),
		fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET next.pause = %d', current_database()); END $$`,
			seconds)); err != nil {
		w.t.Fatal(err)
	}
}

// job is meterplex migrate of the next release, as a deployment runs it in advance.
type job struct {
	t      testing.TB
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{}
}

func startMigration(w *deployment) *job {
	w.t.Helper()
	path, err := faulty()
	must.OK(w.t, err)
	j := &job{t: w.t, cmd: exec.Command(path, "migrate"), ended: make(chan struct{})}
	j.cmd.Env = []string{"HOME=" + w.t.TempDir(), "DATABASE_URL=" + w.db, "METERPLEX_PIPE=" + w.pipe, asNextRelease}
	j.cmd.Stdout, j.cmd.Stderr, j.cmd.SysProcAttr = &j.output, &j.output, childAttributes()
	must.OK(w.t, j.cmd.Start())
	go func() {
		defer close(j.ended)
		_ = j.cmd.Wait()
	}()
	w.t.Cleanup(j.kill)
	return j
}

// kill ends the job as a crash does.
func (j *job) kill() {
	_ = j.cmd.Process.Signal(syscall.SIGKILL)
	<-j.ended
}

// killedWhen waits for a moment in the migration and kills the job. The server ends the job's
// session soon, even if it waits for a lock.
func killedWhen(w *deployment, j *job, moment, sql string) {
	w.t.Helper()
	within(w.t, moment, func(ctx context.Context) (bool, string) {
		var n int
		err := w.sql.QueryRow(ctx, sql).Scan(&n)
		return n > 0, fmt.Sprint(n, " ", err, " ", migrations(w))
	})
	select {
	case <-j.ended:
		w.t.Fatalf("the migration ended before it was killed:\n%s", j.output.String())
	default:
	}
	j.kill()
	within(w.t, "the session of the killed migration has ended", func(ctx context.Context) (bool, string) {
		var n int
		err := w.sql.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'meterplex migrate'`).Scan(&n)
		return n == 0, fmt.Sprint(n, " ", err)
	})
}

// holdTransaction executes a statement and keeps its transaction open until letGo is called.
func holdTransaction(w *deployment, statement string) (letGo func()) {
	w.t.Helper()
	tx, err := w.sql.BeginTx(w.t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		_, err = tx.Exec(w.t.Context(), statement)
	}
	must.OK(w.t, err)
	var once sync.Once
	letGo = func() { once.Do(func() { _ = tx.Rollback(context.Background()) }) }
	w.t.Cleanup(letGo)
	return letGo
}

// loadBalancer is a load balancer: it sends each client to one of the serving instances.
type loadBalancer struct {
	mu      sync.Mutex
	serving []*instance
}

func (f *loadBalancer) urlOf(client int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serving[client%len(f.serving)].url()
}

func (f *loadBalancer) serve(serving ...*instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serving = serving
}

// counters returns an instance's counters since its start: events accepted, published, decided
// and aggregated.
func counters(w *deployment, i *instance) (done [4]float64) {
	w.t.Helper()
	for n, series := range []string{
		`meterplex_events_ingested_total{tenant_class="small",verdict="accepted"}`, `meterplex_events_published_total{topic="usage.raw"}`,
		`meterplex_events_consumed_total{consumer="meterplex-usage-validator",result="ok",topic="usage.raw"}`,
		`meterplex_events_consumed_total{consumer="meterplex-usage-aggregator",result="ok",topic="usage.validated"}`,
	} {
		done[n] = w.metric(i, series)
	}
	return done
}

// awaitShares waits until each instance has accepted, relayed and consumed from now on, and has a lease.
func awaitShares(w *deployment, all ...*instance) {
	w.t.Helper()
	var before [][4]float64
	awaitFreshMetrics()
	for _, i := range all {
		before = append(before, counters(w, i))
	}
	within(w.t, "each instance accepts, relays and consumes", func(context.Context) (bool, string) {
		whole, state := true, ""
		for n, i := range all {
			now := counters(w, i)
			for part := range now {
				now[part] -= before[n][part]
				whole = whole && now[part] > 0
			}
			state += fmt.Sprintf("%s: %v ", i.name, now)
		}
		return whole, state
	})
	for _, i := range all {
		within(w.t, i.name+" holds a lease", func(context.Context) (bool, string) { // it may have lost its leases for a moment
			n := w.count(`SELECT count(*) FROM relay_cursors WHERE owner LIKE '%-' || $1 || '-%' AND lease_until > now()`,
				fmt.Sprint(i.pid()))
			return n > 0, fmt.Sprint(n)
		})
	}
}
