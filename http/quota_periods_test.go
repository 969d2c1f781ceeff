package http_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/validate"
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
	var err error
	other.log, err = eventlog.New(w.Context(), w.pool, eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: "clocked", Commit: "0"},
		Now: c.now, Histories: new(validate.Histories), Written: localtest.CheckPayloads(w.TB).Written})
	w.must(err)
	w.Cleanup(other.log.Close)
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
	w.must(w.pool.QueryRow(w.Context(), `SELECT coalesce(string_agg(concat_ws(' ', period_key, used, held), ', ' ORDER BY period_key), '') FROM quota_accounts
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
	if got := w.want(200, consuming(a.key, "api_calls", "june", 1000)); valuesOf(got, "periodKey", "used", "held") != "2027-06 1000 0" {
		t.Errorf("%v", got)
	}
	if got := w.want(200, committing(a.key, "part", "part-use", 200)); valuesOf(got, "periodKey", "released", "used", "held", "remaining", "resetAt") != "2027-05 100 200 600 200 2027-06-01T00:00:00Z" {
		t.Errorf("%v", got)
	}
	if got := w.want(200, call{"POST", reservationsPath + "/over/commit", a.key, nil, `{"eventId":"over-use","amount":900,"overage":"record"}`}); valuesOf(got, "periodKey", "used", "held", "remaining") != "2027-05 1100 300 0" {
		t.Errorf("%v", got)
	}
	if got := w.want(200, releasing(a.key, "free")); valuesOf(got, "periodKey", "used", "held") != "2027-05 1100 0" {
		t.Errorf("%v", got)
	}
	w.refused(w.do(holding(a.key, "more", 1, 60)), 409, "quota_exceeded")
	if got := w.accountsOf(a); got != "2027-05 1100 0, 2027-06 1000 0" {
		t.Errorf("the accounts are %s", got)
	}
	w.fold()
	for period, want := range map[string]string{"2027-05": "1100 2", "2027-06": "1000 1"} {
		figures := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?period=" + period, key: a.key})["data"].([]any)
		if len(figures) != 1 || valuesOf(figures[0].(map[string]any), "amount", "eventCount") != want {
			t.Errorf("the figures of %s are %v", period, figures)
		}
	}
	receipt := w.do(call{method: "GET", path: "/api/v1/usage/events/part-use", key: a.key})
	if !strings.Contains(string(receipt.body), `"timestamp":"2027-06-01T00:00:05Z"`) {
		t.Errorf("%s", receipt.body)
	}
	if check := w.want(200, call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: a.key}); valuesOf(check, "used", "held", "remaining") != "1000 0 0" {
		t.Errorf("%v", check)
	}
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
