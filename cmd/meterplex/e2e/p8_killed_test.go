package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/infra/stripe/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// closesTest is a deployment whose sagas run in one of two processes, which also answers the requests about periods. It dies at a kill point, and
// the other one goes on.
type closesTest struct {
	*deployment
	rest   *instance // has all other roles
	pair   [2]*killableInstance
	deaths atomic.Int32
	month  string
	paths  map[*tenant]string // of the period

	stripe    *stripetest.Server // nil: tenants have no customer and no webhook
	customers map[*tenant]string
	mu        sync.Mutex
	received  map[string][]string // bodies by webhook-id
}

func newClosesTest(t testing.TB, roles string, env ...string) *closesTest {
	d := &closesTest{deployment: newDeployment(t), month: time.Now().UTC().Format("2006-01"), paths: map[*tenant]string{}}
	d.pipe = "postgres" // a killed member of a Kafka group keeps its partitions for ten seconds
	const fold = "METERPLEX_FAULT_FOLD=doubles"
	d.rest = d.prepare("api,relay,validator,aggregator,deadletter,commands,projector", fold)
	d.rest.build = faulty
	d.rest.start()
	for n := range d.pair {
		d.pair[n] = d.prepareKillable(roles, append(env, fold)...)
	}
	d.running().start()
	d.catalogue(d.rest)
	return d
}

// running is the process that runs sagas at present.
func (d *closesTest) running() *killableInstance { return d.pair[d.deaths.Load()%2] }

// killAt kills the process that runs sagas at the n-th pass of a kill point, at which cause lets it pass, and starts the other one.
func (d *closesTest) killAt(place string, n int, cause func()) {
	d.t.Helper()
	dies := d.running()
	if !dies.armAt(place, n) {
		return
	}
	var caused sync.WaitGroup
	defer caused.Wait() // cause may need the process that goes on
	caused.Go(cause)
	if !dies.awaitDeath(place) {
		return
	}
	d.goOn(dies)
}

// endSagaLeases ends the leases of dead processes on sagas and webhooks, which last 30 s, and their attempts of pushes, which last 2 minutes, as the clock does.
func (w *deployment) endSagaLeases() {
	w.t.Helper()
	for _, end := range []string{`UPDATE sagas SET next_at = now() WHERE lease IS NOT NULL`, `UPDATE webhooks SET next_at = now() WHERE lease IS NOT NULL`, `UPDATE pushes SET next_at = now() WHERE state = 'UNKNOWN'`} {
		if _, err := w.sql.Exec(w.t.Context(), end); err != nil {
			w.t.Error(err)
		}
	}
}

// goOn starts the other process.
func (d *closesTest) goOn(dead *killableInstance) {
	d.t.Helper()
	dead.kill()
	d.endSagaLeases()
	d.deaths.Add(1)
	if err := d.running().tryStart(); err != nil {
		d.t.Error(err)
	}
}

// post repeats a request to the process that runs, with the same Idempotency-Key, until it is answered.
func (d *closesTest) post(path string, in object) {
	once, status, body := uuid.NewString(), 0, []byte(nil)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		var err error
		status, body, err = d.call(d.t.Context(), d.operator, http.MethodPost, d.running().url()+path, in, "Idempotency-Key", once)
		if err == nil && status != http.StatusServiceUnavailable {
			break
		}
	}
	if status != http.StatusOK && status != http.StatusAccepted {
		d.t.Errorf("%s: %d %s", path, status, body)
	}
}

// asking returns a function that sends a request.
func (d *closesTest) asking(path string, in object) func() { return func() { d.post(path, in) } }

func (d *closesTest) closing(x *tenant) func() {
	return d.asking(d.paths[x]+"/close", object{"reason": "a test", "early": true})
}

// closed waits until the period of a tenant is closed, by an event and its snapshot.
func (d *closesTest) closed(x *tenant) {
	d.t.Helper()
	within(d.t, "the period is closed", func(ctx context.Context) (bool, string) {
		var p periodBody
		err := d.get(ctx, d.operator, d.rest, d.paths[x], &p)
		return err == nil && p.State == "CLOSED", fmt.Sprintf("%+v %v", p, err)
	})
	closes, snapshots := d.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 72`, x.id), d.count(`SELECT count(*) FROM period_snapshots WHERE tenant_id = $1`, x.id)
	if closes != snapshots {
		d.t.Fatalf("the log has %d closes of a tenant with %d snapshots", closes, snapshots)
	}
}

// P8: the process that runs the steps of closes, reopenings, decisions and reconciliations is killed at each step: before it appends the event of the
// step, before COMMIT, behind it, and before and behind the change of the saga's row. Another process goes on. Each snapshot, each adjustment and
// each event exists once, with the right figures.
func TestP8_KilledAtEachStepOfAClose(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	d := newClosesTest(t, "api,sagas")
	tenants := d.createTenants(d.rest, 8)
	for n, x := range tenants {
		d.paths[x] = "/api/v1/tenants/" + x.id + "/periods/" + d.month
		d.ask(d.operator, http.MethodPatch, d.rest, "/api/v1/tenants/"+x.id, object{"lateUsage": "ADJUST"}, nil, http.StatusOK)
		d.ingest(d.rest, x, "accepted", events(fmt.Sprint("in-time", n), 3, "api_calls")...) // 1, 2 and 3
	}
	d.drain()
	waits := tenants[7]
	for n, place := range []string{
		"change 70: before the append", "change 70: before COMMIT", "change 70: after COMMIT",
		"change 71: before the append", "change 72: before COMMIT", "change 72: after COMMIT", "saga period_close, COMPLETED: its row is saved",
	} {
		d.killAt(place, 1, d.closing(tenants[n]))
		d.closed(tenants[n])
	}
	d.decide(tenants[:7])
	for n, place := range []string{"change 73: before the append", "change 73: before COMMIT", "change 73: after COMMIT"} {
		d.killAt(place, 1, d.asking(d.paths[tenants[n]]+"/reopen", object{"reason": "once more"}))
		d.closing(tenants[n])()
		d.closed(tenants[n])
	}
	d.waiting(waits)
	d.reconcile()
	for n, x := range tenants {
		d.checkOnce(n, x)
	}
	if got := d.deaths.Load(); got != 22 {
		t.Errorf("%d deaths, want 22", got)
	}
	d.finish()
	d.verifyAtEnd()
}

// decide lets two events of each tenant be late, and kills the process at each step of a decision about one adjustment, and about all.
func (d *closesTest) decide(tenants []*tenant) {
	d.t.Helper()
	for n, x := range tenants {
		d.ingest(d.rest, x, "accepted", events(fmt.Sprint("late", n), 2, "api_calls")...)
	}
	d.drain()
	for n, place := range []string{"change 75: before the append", "change 75: before COMMIT", "change 75: after COMMIT"} {
		var page struct {
			Data []struct{ ID, Position string }
		}
		d.ask(d.operator, http.MethodGet, d.rest, "/api/v1/adjustments?tenantId="+tenants[n].id, nil, &page, http.StatusOK)
		if len(page.Data) != 2 {
			d.t.Fatalf("adjustments: %+v", page)
		}
		d.killAt(place, 1, d.asking("/api/v1/adjustments/"+page.Data[0].ID+[]string{"/approve", "/waive", "/approve"}[n], object{"reason": "agreed"}))
		all := tenants[n+3]
		d.ask(d.operator, http.MethodGet, d.rest, "/api/v1/adjustments?tenantId="+all.id, nil, &page, http.StatusOK)
		d.killAt(place, 1, d.asking("/api/v1/adjustments/decide", object{"tenantId": all.id, "periodKey": d.month, "upTo": page.Data[1].Position, "decision": []string{"waive", "approve", "waive"}[n], "reason": "all"}))
	}
}

// waiting kills the process while a close waits, for an open rebuild.
func (d *closesTest) waiting(x *tenant) {
	d.t.Helper()
	r := d.startRebuild(d.rest, "usage_aggregates")
	d.ready(d.rest, r.ID)
	d.killAt("saga period_close, RUNNING: before its row is saved", 1, d.closing(x))
	d.killAt("saga period_close, RUNNING: its row is saved", 1, func() {})
	d.ask(d.operator, http.MethodPost, d.rest, "/api/v1/rebuilds/"+r.ID+"/abandon", object{"reason": "a test"}, nil, http.StatusAccepted)
	d.closed(x)
}

// reconcile promotes a generation that counts twice as much, and rolls it back, two times. The process is killed at each step of the
// reconciliation: of the second tenant, where it is one of a tenant.
func (d *closesTest) reconcile() {
	d.t.Helper()
	r := d.startRebuild(d.rest, "usage_aggregates")
	d.ready(d.rest, r.ID)
	for n, place := range []string{"change 74: before the append", "change 74: before COMMIT", "change 74: after COMMIT", "saga period_reconcile, COMPLETED: its row is saved"} {
		pass := 2
		if n == 3 {
			pass = 1
		}
		d.killAt(place, pass, d.asking("/api/v1/rebuilds/"+r.ID+[]string{"/promote", "/rollback"}[n%2], object{"reason": "a test"}))
		within(d.t, "all closed periods are reconciled", func(ctx context.Context) (bool, string) {
			open := d.count(`SELECT count(*) FROM sagas WHERE ended_at IS NULL`)
			return open == 0, fmt.Sprint(open, " sagas are open")
		})
	}
}

// checkOnce checks the events, the snapshots and the adjustments of a tenant by its number.
func (d *closesTest) checkOnce(n int, x *tenant) {
	d.t.Helper()
	frozen, log, late := []string{"1: 6/3"}, "70 1, 71 1, 72 1, 74 4, 75 1", "LATE_USAGE 1 PENDING, LATE_USAGE 2 PENDING, "
	total := 9
	switch {
	case n < 3:
		frozen, log = append(frozen, "2: 9/5"), "70 2, 71 2, 72 2, 73 1, 74 4, 75 1"
		late = "LATE_USAGE 1 " + []string{"APPROVED", "WAIVED", "APPROVED"}[n] + ", LATE_USAGE 2 VOID, "
	case n < 6:
		late = strings.ReplaceAll(late, "PENDING", []string{"WAIVED", "APPROVED", "WAIVED"}[n-3])
	case n == 6:
		log = "70 1, 71 1, 72 1, 74 4"
	default:
		log, late, total = "70 1, 71 1, 72 1, 74 4", "", 6
	}
	rebuilt := fmt.Sprintf("REBUILD %d PENDING, REBUILD -%[1]d PENDING", total)
	same := func(what, want, sql string) {
		d.t.Helper()
		var got string
		if err := d.sql.QueryRow(d.t.Context(), sql, x.id).Scan(&got); err != nil || got != want {
			d.t.Errorf("tenant %d has the %s %q, want %q: %v", n, what, got, want, err)
		}
	}
	same("events", log, `SELECT string_agg(subject || ' ' || n, ', ' ORDER BY subject) FROM (SELECT subject, count(*) n FROM event_log_rows WHERE tenant_id = $1 AND subject BETWEEN 70 AND 75 GROUP BY 1) s`)
	same("frozen figures", strings.Join(frozen, ", "), `SELECT string_agg(snapshot || ': ' || amount || '/' || event_count, ', ' ORDER BY snapshot) FROM period_snapshots JOIN period_lines USING (tenant_id, period_key, snapshot) WHERE tenant_id = $1`)
	same("adjustments", late+rebuilt+", "+rebuilt, `SELECT string_agg(kind || ' ' || amount || ' ' || state, ', ' ORDER BY position) FROM adjustments WHERE tenant_id = $1`)
	same("sagas", fmt.Sprint(len(frozen), " COMPLETED success"), `SELECT string_agg(DISTINCT n || ' ' || state || ' ' || outcome, ', ') FROM (SELECT count(*) n, state, outcome FROM sagas WHERE tenant_id = $1 GROUP BY 2, 3) s`)
	var p struct {
		Lines []struct{ Net, Unreconciled json.Number }
	}
	d.ask(d.operator, http.MethodGet, d.rest, d.paths[x], nil, &p, http.StatusOK)
	if len(p.Lines) != 1 || p.Lines[0].Net.String() != fmt.Sprint(total) || p.Lines[0].Unreconciled != "0" {
		d.t.Errorf("tenant %d has the lines %+v, want %d", n, p.Lines, total)
	}
}
