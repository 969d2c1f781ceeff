package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// closesTest runs sagas in one of two processes, which also answers the requests about periods. It dies at a kill point, and
// the other one continues.
type closesTest struct {
	w      *deployment
	rest   *instance // has all other roles
	pair   [2]*instance
	deaths atomic.Int32
	month  string
}

func newClosesTest(t testing.TB, roles string, env ...string) *closesTest {
	w := newDeployment(t)
	w.pipe = "postgres" // a killed member of a Kafka group keeps its partitions for ten seconds
	const fold = "METERPLEX_FAULT_FOLD=doubles"
	d := &closesTest{w: w, month: time.Now().UTC().Format("2006-01"),
		rest: w.killable("api,relay,validator,aggregator,deadletter,commands,projector", fold)}
	for n := range d.pair {
		d.pair[n] = prepareKillable(w, roles, append(env, fold)...)
	}
	d.running().start()
	w.catalogue(d.rest)
	return d
}

// running is the process that runs sagas at present.
func (d *closesTest) running() *instance { return d.pair[d.deaths.Load()%2] }

// killAt kills the process that runs sagas at the n-th pass of a kill point, at which a request lets it pass, and starts the other one. If
// the next points are given, that one dies there, too, and so on.
func (d *closesTest) killAt(point string, n int, path string, in object, next ...int) {
	d.w.t.Helper()
	d.running().armAt(point, n)
	var caused sync.WaitGroup
	defer caused.Wait() // the request may need the process that continues
	if path != "" {
		caused.Go(func() { d.post(path, in) })
	}
	for death := range len(next) + 1 {
		dead, other := d.running(), d.pair[(d.deaths.Load()+1)%2]
		if !dead.awaitDeath(point) {
			return
		}
		if death < len(next) {
			other.armAt(point, next[death])
		}
		dead.kill()
		// The leases of dead processes on sagas and webhooks last 30 s, their attempts of pushes 2 minutes.
		d.w.run(`UPDATE sagas SET next_at = now() WHERE lease IS NOT NULL`, `UPDATE webhooks SET next_at = now() WHERE lease IS NOT NULL`,
			`UPDATE pushes SET next_at = now() WHERE state = 'UNKNOWN'`)
		d.deaths.Add(1)
		if err := d.running().tryStart(); err != nil {
			d.w.t.Error(err)
		}
	}
}

// post sends an operator's request to the process that runs.
func (d *closesTest) post(path string, in object) {
	in["reason"] = "a test"
	retryUntilAnswered(d.w, func() string { return d.running().url() }, path, in)
}

func (d *closesTest) pathOf(x *tenant) string {
	return "/api/v1/tenants/" + x.id + "/periods/" + d.month
}

// closeAt closes the period of a tenant, whose process dies at a kill point.
func (d *closesTest) closeAt(point string, x *tenant) {
	d.w.t.Helper()
	d.killAt(point, 1, d.pathOf(x)+"/close", object{"early": true})
	d.closed(x)
}

// closed waits until the period of a tenant is closed, by an event and its snapshot.
func (d *closesTest) closed(x *tenant) {
	d.w.t.Helper()
	within(d.w.t, "the period is closed", func(ctx context.Context) (bool, string) {
		var p periodBody
		err := d.w.get(ctx, d.w.operator, d.rest, d.pathOf(x), &p)
		return err == nil && p.State == "CLOSED", fmt.Sprintf("%+v %v", p, err)
	})
}

// same compares a text that a query returns for a tenant.
func (d *closesTest) same(x *tenant, what, want, sql string) {
	d.w.t.Helper()
	var got string
	if err := d.w.sql.QueryRow(d.w.t.Context(), sql, x.id).Scan(&got); err != nil || got != want {
		d.w.t.Errorf("tenant %s has the %s %q, want %q: %v", x.id, what, got, want, err)
	}
}

// adjustments returns the adjustments of a tenant.
func (d *closesTest) adjustments(x *tenant) []struct{ ID, Position string } {
	d.w.t.Helper()
	var page struct {
		Data []struct{ ID, Position string }
	}
	d.w.ask(d.w.operator, http.MethodGet, d.rest, "/api/v1/adjustments?tenantId="+x.id, nil, &page, http.StatusOK)
	if len(page.Data) != 2 {
		d.w.t.Fatalf("adjustments: %+v", page)
	}
	return page.Data
}

// P8: the process that runs the steps of closes, reopenings, decisions and reconciliations is killed at each step: before it appends the
// event of the step, before COMMIT, behind it, and before and behind the change of the saga's row. Another process continues. Each
// snapshot, each adjustment and each event exists once, with the right figures.
func TestP8_KilledAtEachStepOfAClose(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	d := newClosesTest(t, "api,sagas")
	w, tenants := d.w, d.w.createTenants(d.rest, 8)
	for n, x := range tenants {
		w.ask(w.operator, http.MethodPatch, d.rest, "/api/v1/tenants/"+x.id, object{"lateUsage": "ADJUST"}, nil, http.StatusOK)
		w.ingest(d.rest, x, "accepted", events(fmt.Sprint("in-time", n), 3, "api_calls")...) // 1, 2 and 3
	}
	w.drain()
	for n, point := range []string{
		"change 70: before the append", "change 70: before COMMIT", "change 70: after COMMIT",
		"change 71: before the append", "change 72: before COMMIT", "change 72: after COMMIT",
		"saga period_close, COMPLETED: its row is saved",
	} {
		d.closeAt(point, tenants[n])
	}
	for n, x := range tenants[:7] {
		w.ingest(d.rest, x, "accepted", events(fmt.Sprint("late", n), 2, "api_calls")...)
	}
	w.drain()
	for n, point := range []string{"change 75: before the append", "change 75: before COMMIT", "change 75: after COMMIT"} {
		d.killAt(point, 1, "/api/v1/adjustments/"+d.adjustments(tenants[n])[0].ID+[]string{"/approve", "/waive", "/approve"}[n], object{})
		all := tenants[n+3]
		in := object{"tenantId": all.id, "periodKey": d.month, "upTo": d.adjustments(all)[1].Position,
			"decision": []string{"waive", "approve", "waive"}[n]}
		d.killAt(point, 1, "/api/v1/adjustments/decide", in)
	}
	for n, point := range []string{"change 73: before the append", "change 73: before COMMIT", "change 73: after COMMIT"} {
		d.killAt(point, 1, d.pathOf(tenants[n])+"/reopen", object{})
		d.post(d.pathOf(tenants[n])+"/close", object{"early": true})
		d.closed(tenants[n])
	}
	// A close waits for an open rebuild.
	r := startRebuild(w, d.rest, "usage_aggregates")
	awaitReady(w, d.rest, r.ID)
	d.killAt("saga period_close, RUNNING: before its row is saved", 1, d.pathOf(tenants[7])+"/close", object{"early": true})
	d.killAt("saga period_close, RUNNING: its row is saved", 1, "", nil)
	w.ask(w.operator, http.MethodPost, d.rest, "/api/v1/rebuilds/"+r.ID+"/abandon", object{"reason": "a test"}, nil, http.StatusAccepted)
	d.closed(tenants[7])
	// A generation that counts twice as much is promoted and rolled back, two times. The process dies during the reconciliation of the
	// second tenant.
	r = startRebuild(w, d.rest, "usage_aggregates")
	awaitReady(w, d.rest, r.ID)
	for n, point := range []string{"change 74: before the append", "change 74: before COMMIT", "change 74: after COMMIT",
		"saga period_reconcile, COMPLETED: its row is saved"} {
		d.killAt(point, []int{2, 2, 2, 1}[n], "/api/v1/rebuilds/"+r.ID+[]string{"/promote", "/rollback"}[n%2], object{})
		within(t, "all closed periods are reconciled", func(context.Context) (bool, string) {
			open := w.count(`SELECT count(*) FROM sagas WHERE ended_at IS NULL`)
			return open == 0, fmt.Sprint(open, " sagas are open")
		})
	}
	for n, x := range tenants {
		d.checkOnce(n, x)
	}
	if got := d.deaths.Load(); got != 22 {
		t.Errorf("%d deaths, want 22", got)
	}
	w.finish()
}

// checkOnce checks the events, the snapshots and the adjustments of a tenant by its number.
func (d *closesTest) checkOnce(n int, x *tenant) {
	d.w.t.Helper()
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
	d.same(x, "events", log, `SELECT string_agg(subject || ' ' || n, ', ' ORDER BY subject)
FROM (SELECT subject, count(*) n FROM event_log_rows WHERE tenant_id = $1 AND subject BETWEEN 70 AND 75 GROUP BY 1) s`)
	d.same(x, "frozen figures", strings.Join(frozen, ", "),
		`SELECT string_agg(snapshot || ': ' || amount || '/' || event_count, ', ' ORDER BY snapshot)
FROM period_snapshots JOIN period_lines USING (tenant_id, period_key, snapshot) WHERE tenant_id = $1`)
	d.same(x, "adjustments", late+rebuilt+", "+rebuilt,
		`SELECT string_agg(kind || ' ' || amount || ' ' || state, ', ' ORDER BY position) FROM adjustments WHERE tenant_id = $1`)
	d.same(x, "sagas", fmt.Sprint(len(frozen), " COMPLETED success"), `SELECT string_agg(DISTINCT n || ' ' || state || ' ' || outcome, ', ')
FROM (SELECT count(*) n, state, outcome FROM sagas WHERE tenant_id = $1 GROUP BY 2, 3) s`)
	var p struct {
		Lines []struct{ Net, Unreconciled json.Number }
	}
	d.w.ask(d.w.operator, http.MethodGet, d.rest, d.pathOf(x), nil, &p, http.StatusOK)
	if len(p.Lines) != 1 || p.Lines[0].Net.String() != fmt.Sprint(total) || p.Lines[0].Unreconciled != "0" {
		d.w.t.Errorf("tenant %d has the lines %+v, want %d", n, p.Lines, total)
	}
}

// billedCloses is newClosesTest for tenants that have a customer of a Stripe each, and a webhook. check waits until all of a tenant is
// sent, and checks that Stripe's sum is what was delivered and what is billable, and that the close reached the receiver under one id with
// one body.
func billedCloses(t testing.TB, n int) (d *closesTest, tenants []*tenant, check func(x *tenant)) {
	const secret = "sk_test_killed"
	// Its clock does not move: times of the test are in its past.
	stripe := stripetest.New(secret, time.Now().UTC().Add(12*time.Hour))
	t.Cleanup(stripe.Close)
	stripe.AddMeter(stripetest.Meter{Event: "api_calls"})
	var mu sync.Mutex
	received := map[string][]string{} // bodies by webhook-id
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		received[r.Header.Get("webhook-id")] = append(received[r.Header.Get("webhook-id")], string(body))
	}))
	t.Cleanup(receiver.Close)
	d = newClosesTest(t, "api,sagas,biller,notifier", "METERPLEX_STRIPE_KEY="+secret, "METERPLEX_STRIPE_URL="+stripe.URL, hooksAllowed)
	w := d.w
	for _, x := range w.createTenants(d.rest, n) {
		tenants = append(tenants, x)
		stripe.AddCustomer(customerOf(x))
		path := "/api/v1/tenants/" + x.id
		w.ask(w.operator, http.MethodPut, d.rest, path+"/billing", object{"provider": "stripe", "customer": customerOf(x)}, nil,
			http.StatusOK)
		// only the addresses of the process that sends allow the receiver
		in := object{"url": receiver.URL, "events": []string{"period.closed"}}
		w.ask(w.operator, http.MethodPost, d.running(), path+"/webhooks", in, nil, http.StatusCreated)
		w.ingest(d.rest, x, "accepted", events("in-time", 3, "api_calls")...) // 1, 2 and 3
	}
	w.drain()
	return d, tenants, func(x *tenant) {
		within(t, "all is sent", func(context.Context) (bool, string) {
			const pushed, delivery = `SELECT count(*) FROM pushes WHERE tenant_id = $1 AND state = `,
				`SELECT count(*) FROM webhook_deliveries WHERE tenant_id = $1 AND state `
			pushes, waiting, ended := w.count(pushed+`'DELIVERED'`, x.id), w.count(delivery+`= 'PENDING'`, x.id),
				w.count(delivery+`<> 'PENDING'`, x.id)
			sagas := w.count(`SELECT count(*) FROM sagas WHERE tenant_id = $1 AND ended_at IS NULL`, x.id)
			return pushes == 1 && waiting == 0 && ended == 1 && sagas == 0,
				fmt.Sprintf("%d pushes are delivered, %d deliveries of %d and %d sagas wait", pushes, waiting, waiting+ended, sagas)
		})
		d.same(x, "delivered, billable and recorded pushes", "6 6 1",
			`SELECT (SELECT sum(amount) FROM pushes WHERE tenant_id = $1 AND state = 'DELIVERED') || ' ' ||
 (SELECT sum(amount) FROM period_lines WHERE tenant_id = $1) || ' ' || (SELECT count(*) FROM event_log_rows WHERE tenant_id = $1
 AND subject = 76)`)
		var closed string
		must.OK(t, w.sql.QueryRow(t.Context(), `SELECT event_id::text FROM event_log_rows WHERE tenant_id = $1 AND subject = 72`,
			x.id).Scan(&closed))
		mu.Lock()
		defer mu.Unlock()
		bodies := received[closed]
		if len(bodies) == 0 || strings.Count(strings.Join(bodies, ""), bodies[0]) != len(bodies) {
			t.Errorf("%s: the close was sent as %q", x.id, bodies)
		}
		if sum := stripe.Sum(customerOf(x), "api_calls").String(); sum != "6" {
			t.Errorf("Stripe counts %s of %s, want 6", sum, x.id)
		}
	}
}

// P8: the process that sends pushes and webhooks is killed at each step: before and behind the COMMIT of a push, of its attempt and of its
// delivery, before and behind each request. Another one continues. The provider counts each amount once, and a webhook gets each event,
// under the same id in each attempt.
func TestP8_KilledAtEachStepOfAPush(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	points := []string{
		"push: before it is stored", "push: stored", "push: its attempt is stored", "push: sent",
		"change 76: before the append", "change 76: before COMMIT", "change 76: after COMMIT",
		"saga billing_push, COMPLETED: its row is saved",
		"webhook: before it is sent", "webhook: sent", "webhook: recorded",
	}
	d, tenants, check := billedCloses(t, len(points))
	for n, point := range points {
		d.closeAt(point, tenants[n])
		check(tenants[n])
	}
	if got := int(d.deaths.Load()); got != len(points) {
		t.Errorf("%d deaths, want %d", got, len(points))
	}
	d.w.finish()
}

// P8: the process that offboards a tenant is killed at each step: before the append of the step's event, before and behind COMMIT. Another
// one continues. The tenant is archived with a whole manifest, each step is recorded once, and each amount due is pushed once. So it is
// with its erasure.
func TestP8_KilledAtEachStepOfAnOffboarding(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	points := []string{"change 80: before the append", "change 80: before COMMIT", "change 80: after COMMIT"}
	d, tenants, check := billedCloses(t, len(points))
	const steps = 7 // the request, and six of the saga
	for n, point := range points {
		x, pass := tenants[n], 2 // a process that died before COMMIT lets the next one repeat the step
		if n == 2 {
			pass = 1
		}
		d.killAt(point, 1, "/api/v1/tenants/"+x.id+"/offboard", object{}, pass, pass, pass, pass, pass, pass)
		check(x)
		d.same(x, "steps in the log", "requested suspended drained closed pushed exported archived",
			`SELECT string_agg(payload(l)->>'step', ' ' ORDER BY position) FROM event_log_rows l WHERE tenant_id = $1 AND subject = 80`)
		d.same(x, "offboarding, tenant, saga, webhooks, hashes of the manifest, snapshots, usable keys",
			"ARCHIVED ARCHIVED COMPLETED DISABLED 1 1 0",
			`SELECT concat_ws(' ', o.state, t.status, s.state, (SELECT string_agg(DISTINCT w.status, ',') FROM webhooks w
				WHERE w.tenant_id = $1),
 (SELECT count(*) FROM event_log_rows l WHERE tenant_id = $1 AND subject = 80
 AND payload(l)->>'detail' = 'sha256 ' || encode(sha256(convert_to(o.manifest, 'UTF8')), 'hex')),
 json_array_length(o.manifest::json->'snapshots'), (SELECT count(*) FROM api_keys k WHERE k.tenant_id = $1 AND k.revoked_at IS NULL))
FROM offboardings o JOIN tenants t ON t.id = o.tenant_id JOIN sagas s ON s.id = o.saga_id WHERE o.tenant_id = $1`)
	}
	// Its personal data is erased: the process dies after the batches of the log and of the read models, before and behind the COMMIT of
	// the request and the end.
	for n, c := range []struct {
		point string
		next  []int
	}{{"saga erasure, RUNNING: before its row is saved", []int{2, 2, 2}}, {"change 81: before COMMIT", []int{2}},
		{"change 81: after COMMIT", []int{1}}} {
		x := tenants[n]
		d.killAt(c.point, 1, "/api/v1/tenants/"+x.id+"/erase", object{}, c.next...)
		within(t, "the erasure ends", func(context.Context) (bool, string) {
			return d.w.count(`SELECT count(*) FROM erasures WHERE tenant_id = $1 AND state = 'ERASED'`, x.id) == 1, "it runs"
		})
		d.same(x, "erasure", "requested erased erased",
			`SELECT string_agg(l.body ->> 'step', ' ' ORDER BY l.position) || ' ' || (SELECT name FROM tenants WHERE id = $1)
				FROM event_log_rows l WHERE tenant_id = $1 AND subject = 81`)
	}
	if got, want := int(d.deaths.Load()), len(points)*steps+4+2+2; got != want {
		t.Errorf("%d deaths, want %d", got, want)
	}
	d.w.finish()
}
