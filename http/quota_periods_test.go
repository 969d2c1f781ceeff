package http_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
)

// clock is the clock of an instance, which a test sets.
type clock struct{ at atomic.Pointer[time.Time] }

func (c *clock) set(text string) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	c.at.Store(&at)
}

func (c *clock) now() time.Time { return *c.at.Load() }

// clocked returns an instance with the clock, over the same database.
func (w *testService) clocked(c *clock) *testService {
	w.Helper()
	other := *w
	other.log = w.newLog(w.pool, "clocked", c.now)
	other.store = store.New(w.pool, other.log, store.Config{})
	s := other.server()
	s.Quotas.Now, s.Ingest.Now, s.Catalogue.Now = c.now, c.now, c.now
	s.Reads = models.NewReads(query.DB{Pool: w.pool}, w.grants, models.DefaultFolds(), c.now, 0)
	other.serve(s)
	return &other
}

// newClocked returns a service whose clock stands at a time, with the features of catalogue.
func newClocked(t *testing.T, at string) (*testService, *clock) {
	t.Helper()
	c := &clock{}
	c.set(at)
	w := newTestService(t).clocked(c)
	w.catalogue()
	return w, c
}

// accountsOf lists a tenant's accounts of api_calls: the period, used and held amount of each.
func (w *testService) accountsOf(a *account) string {
	w.Helper()
	var list string
	w.must(w.pool.QueryRow(w.Context(), `SELECT coalesce(string_agg(concat_ws(' ', period_key, used, held), ', ' ORDER BY period_key), '')
		FROM quota_accounts
 WHERE tenant_id = $1 AND feature = 'api_calls'`, a.id).Scan(&list))
	return list
}

// A hold of May counts in May, whenever it is committed. The account of June stays as it is.
func TestP7_AHoldOfMayIsCommittedInMay(t *testing.T) {
	w, c := newClocked(t, "2027-05-31T23:59:50Z")
	a := w.newAccount("A")
	for _, id := range []string{"part", "over", "free"} {
		w.want(201, holding(a.key, id, 300, 3600))
	}
	c.set("2027-06-01T00:00:05Z")
	over := call{"POST", reservationsPath + "/over/commit", a.key, nil, `{"eventId":"over-use","amount":900,"overage":"record"}`}
	for _, step := range []struct {
		call
		want string // periodKey, used, held and remaining
	}{
		{consuming(a.key, "api_calls", "june", 1000), "2027-06 1000 0 0"}, {committing(a.key, "part", "part-use", 200),
			"2027-05 200 600 200"},
		{over, "2027-05 1100 300 0"}, {releasing(a.key, "free"), "2027-05 1100 0 0"},
	} {
		w.same(step.method+" "+step.path, valuesOf(w.want(200, step.call), "periodKey", "used", "held", "remaining"), step.want)
	}
	w.refused(w.do(holding(a.key, "more", 1, 60)), 409, "quota_exceeded")
	w.same("the accounts", w.accountsOf(a), "2027-05 1100 0, 2027-06 1000 0")
	w.fold()
	for period, want := range map[string]string{"2027-05": "1100 2", "2027-06": "1000 1"} {
		w.same(period, w.adjustmentsAt("/api/v1/usage/aggregates?tenantId="+a.id+"&period="+period, "amount", "eventCount"), []string{want})
	}
	receipt := w.do(call{method: "GET", path: "/api/v1/usage/events/part-use", key: a.key})
	w.holds("the receipt", string(receipt.body), `"timestamp":"2027-06-01T00:00:05Z"`)
	check := w.want(200, call{method: "GET", path: checkPath, key: a.key})
	w.same("the check", valuesOf(check, "used", "held", "remaining"), "1000 0 0")
}

// A reservation holds its amount until the event that it expired, not until its time: the account, checks and a rebuild sum events.
func TestP7_AHeldAmountIsHeldUntilItsExpiryIsRecorded(t *testing.T) {
	w, c := newClocked(t, "2026-05-10T12:00:00Z") // by any other clock the time is over long since
	a := w.newAccount("A")
	w.want(201, holding(a.key, "r", 300, 60))
	w.want(201, holding(a.key, "s", 200, 60))
	for _, step := range []struct {
		at, held string
		change   call
	}{
		{"2026-05-10T12:00:59Z", "500", call{method: "GET", path: checkPath, key: a.key}},
		{"2026-05-10T12:01:01Z", "500", call{method: "GET", path: checkPath, key: a.key}},
		{"2026-05-10T12:01:01Z", "300", committing(a.key, "s", "late", 200)},
		{"2026-05-10T12:01:02Z", "0", consuming(a.key, "api_calls", "room", 800)}, // r expires before it would be refused
	} {
		c.set(step.at)
		w.want(200, step.change)
		w.fold()
		check := w.want(200, call{method: "GET", path: checkPath, key: a.key})
		if got := w.accountsOf(a); fmt.Sprint(check["held"]) != step.held || !strings.HasSuffix(got, " "+step.held) {
			t.Errorf("at %s: the check has %v held, the account %s, want %s", step.at, check["held"], got, step.held)
		}
	}
}
