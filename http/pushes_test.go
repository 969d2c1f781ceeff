package http_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/pushes"
)

// push stores a push of the last month by hand.
func (w *testService) push(tenant string, n int, state string) (id string) {
	w.Helper()
	id = newID().String()
	key, at := lastMonth()
	w.exec(`INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier,
		counted_at, state, attempts, stored_at,
 first_attempt_at, attempted_at, unknown_since, last_code, last_error)
 VALUES ($1::uuid, $2::uuid, 'api_calls', $3, 1, $4, 12, 'stripe', 'cus_NffrFeUfNV2Hib', 'api_calls', $1::text, $1::text, $5, $6, 1, now(),
 now(), now(), CASE WHEN $6 = 'UNKNOWN' THEN now() END,
 'resource_missing', 'No such customer: cus_NffrFeUfNV2Hib')`, id, tenant, key, n, at, state)
	return id
}

func (w *testService) pushes(provider billing.Provider) *billing.Pushes {
	return &billing.Pushes{Store: &pushes.Pushes{Store: w.store}, Provider: provider, Now: time.Now, NewID: newID,
		Logger: slog.New(slog.DiscardHandler)}
}

// countingProvider counts each identifier once.
type countingProvider struct {
	w      *testService
	counts map[string]*big.Int
	events []string
	result push.Result // "": delivered
}

func (p *countingProvider) Send(_ context.Context, due push.Push, _ events.TracedEvent) push.Result {
	if p.result.Outcome != "" {
		return p.result
	}
	p.counts[due.Identifier] = due.Amount
	p.events = append(p.events, due.Customer+" "+due.Event+" "+due.Timestamp.UTC().Format("2006-01-02T15:04:05"))
	return push.Result{Outcome: push.Delivered}
}

func (p *countingProvider) Total(context.Context, string, string, time.Time, time.Time) (*big.Int, error) {
	return p.sum(), nil
}

func (p *countingProvider) sum() *big.Int {
	sum := new(big.Int)
	for _, amount := range p.counts {
		sum.Add(sum, amount)
	}
	return sum
}

// approve approves the pending adjustments of a tenant.
func (w *testService) approve(a *account) {
	w.Helper()
	for _, id := range w.adjustmentsAt("/api/v1/adjustments?state=PENDING&tenantId="+a.id, "id") {
		w.want(200, call{"POST", "/api/v1/adjustments/" + id + "/approve", bootstrap, nil, `{"reason":"r"}`})
	}
}

// runPushes runs the sagas of pushes until none is due.
func (w *testService) runPushes(provider billing.Provider) {
	w.Helper()
	c := w.pushes(provider)
	w.runSagas(c.PushKind(), c.CompareKind())
}

func (w *testService) listedPushes(query string, members ...string) []string {
	w.Helper()
	return w.adjustmentsAt("/api/v1/pushes"+query, members...)
}

// A closed period, approved adjustments and a later snapshot are pushed: the provider's sum is what is billable.
func TestP8_PushesSumUpToWhatIsBillable(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(200, call{"PUT", "/api/v1/features/api_calls", bootstrap, nil, `{"name":"Calls","type":"QUOTA","billingEvent":"calls_meter"}`})
	billing := "/api/v1/tenants/" + a.id + "/billing"
	for range 2 {
		got := w.want(200, call{"PUT", billing, bootstrap, nil, `{"provider":"stripe","customer":"cus_1"}`})
		w.same("billing", got["billing"], map[string]any{"customer": "cus_1", "provider": "stripe"})
	}
	w.same("the tenant", w.want(200, call{method: "GET", path: "/api/v1/tenants/" + a.id, key: bootstrap})["billing"],
		map[string]any{"customer": "cus_1", "provider": "stripe"})
	p := &countingProvider{w: w, counts: map[string]*big.Int{}}
	w.accept(a, old("one", 10), old("two", 5))
	path := w.closed(a)
	w.runPushes(p)
	key, _ := lastMonth()
	_, end, _ := domain.PeriodBounds(key)
	w.same("the provider's events", p.events, []string{"cus_1 calls_meter " + end.Add(-time.Second).Format("2006-01-02T15:04:05")})
	w.same("after the close", p.sum(), 15)

	w.accept(a, correction("fix", "one", 3), retraction("undo", "two"))
	w.fold()
	ids := w.adjustmentsAt("/api/v1/adjustments?tenantId="+a.id, "id")
	w.want(200, call{"POST", "/api/v1/adjustments/" + ids[0] + "/approve", bootstrap, nil, `{"reason":"r"}`})
	w.runPushes(p)
	w.same("after an approval", p.sum(), 8)
	w.want(200, call{"POST", path + "/reopen", bootstrap, nil, `{"reason":"r"}`})
	w.runPushes(p)
	w.same("after a reopening", p.sum(), 8)
	w.closed(a)
	w.runPushes(p)
	w.same("after the second close", p.sum(), 3)
	w.same("pushes", w.listedPushes("?tenantId="+a.id, "amount", "snapshot", "state"),
		[]string{"-5 2 DELIVERED", "-7 1 DELIVERED", "15 1 DELIVERED"})
	w.same("of a state", w.listedPushes("?state=FAILED"), []string{})
	w.same("of a period", w.listedPushes("?periodKey=2020-01"), []string{})
	var delivered int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = 76`).Scan(&delivered))
	w.same("deliveries in the log", delivered, 3)
	w.want(200, call{method: "DELETE", path: billing, key: bootstrap})
	w.same("billing after its removal", w.want(200, call{method: "GET", path: "/api/v1/tenants/" + a.id, key: bootstrap})["billing"], nil)
}

// A credit after a change of the customer goes to the former one, as far as it was charged; a charge that was never sent goes to the new
// one.
func TestP8_CreditsGoToTheCustomerThatWasCharged(t *testing.T) {
	w, a := newServiceWithAccount(t)
	set := func(customer string) {
		w.want(200, call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil,
			fmt.Sprintf(`{"provider":"stripe","customer":%q}`, customer)})
	}
	approve := func(sent map[string]any) { w.approved(a, sent) }
	p := &countingProvider{w: w, counts: map[string]*big.Int{}}
	set("cus_1")
	w.accept(a, old("one", 10), old("two", 5))
	w.closed(a)
	w.runPushes(p)
	set("cus_2")
	approve(correction("fix", "one", 14))
	w.runPushes(nil) // stored
	set("cus_3")
	approve(retraction("undo", "two"))
	w.runPushes(nil)
	w.same("stored", w.listedPushes("", "customer", "amount"), []string{"cus_1 -5", "cus_3 4", "cus_1 15"})
	set("cus_4")
	w.due()
	w.runPushes(p)
	approve(correction("fix-2", "one", 1))
	w.runPushes(p)
	w.same("delivered", w.listedPushes("", "customer", "amount", "state"), []string{"cus_1 -9 DELIVERED", "cus_4 -4 DELIVERED",
		"cus_1 -5 DELIVERED", "cus_4 4 DELIVERED", "cus_1 15 DELIVERED"})
	w.same("the provider's sum", p.sum(), 1)
}

func TestP8_FailedAndUnknownPushesWaitForOperators(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.refused(w.do(call{"POST", "/api/v1/pushes/reconcile", bootstrap, nil, nil}), 409, "billing_not_configured")
	w.want(200, call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_1"}`})
	w.accept(a, old("one", 10))
	w.closed(a)
	p := &countingProvider{w: w, counts: map[string]*big.Int{}, result: push.Result{Outcome: push.Refused,
		Code:   "resource_missing",
		Reason: "No such customer: cus_1"}}
	w.runPushes(nil)
	w.same("without a key", w.listedPushes("", "state", "attempts", "lastError"),
		[]string{"PENDING 0 METERPLEX_STRIPE_KEY is not set on an instance with the role biller"})
	w.due()
	w.runPushes(p)
	w.same("refused", w.listedPushes("?state=FAILED", "state", "lastCode", "lastError"),
		[]string{"FAILED resource_missing No such customer: cus_1"})
	one := "/api/v1/pushes/" + w.listedPushes("", "id")[0]
	retry, resolve := call{"POST", one + "/retry", bootstrap, nil, `{"reason":"r"}`},
		call{"POST", one + "/resolve", bootstrap, nil, `{"delivered":true,"reason":"r"}`}
	w.same("after a retry", w.want(200, retry)["state"], "PENDING")
	w.refused(w.do(retry), 409, "push_pending")
	p.result.Outcome = push.Unknown
	w.runPushes(p) // the retry woke the saga
	w.same("without an answer", w.listedPushes("", "state"), []string{"UNKNOWN"})
	w.exec(`UPDATE pushes SET first_attempt_at = now() - interval '25 hours', unknown_since = now() - interval '25 hours',
		next_at = now() - interval '1 hour'`)
	w.due()
	p.result.Outcome = ""
	w.runPushes(p)
	w.same("25 hours later", w.listedPushes("", "state", "lastCode", "nextAt"), []string{"UNKNOWN push_unknown <nil>"})
	w.same("sent again", len(p.counts), 0)
	w.refused(w.do(retry), 409, "push_unknown")
	w.same("resolved", w.want(200, resolve)["state"], "DELIVERED")
	w.refused(w.do(retry), 409, "push_delivered")
	var ends string
	w.must(w.pool.QueryRow(t.Context(), `SELECT string_agg(subject || ' ' || coalesce(body ->> 'code', body ->> 'resolution'), ', '
		ORDER BY position)
 FROM event_log_rows WHERE subject IN (76, 77)`).Scan(&ends))
	w.same("the log", ends, "77 resource_missing, 77 push_unknown, 76 OPERATOR")
}

// due lets the sagas run at once.
func (w *testService) due() {
	w.Helper()
	w.exec(`UPDATE sagas SET next_at = now() WHERE ended_at IS NULL`)
}

func TestP8_TotalsAreComparedOnRequest(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(200, call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_1"}`})
	w.accept(a, old("one", 10))
	w.closed(a)
	p := &countingProvider{w: w, counts: map[string]*big.Int{}}
	w.runPushes(p)
	_, err := w.pool.Exec(t.Context(),
		`UPDATE pushes SET counted_at = date_trunc('second', now())`) // within the last 35 days on each day of a month
	w.must(err)
	compared := func() (n int) {
		t.Helper()
		saga := w.want(202, call{"POST", "/api/v1/pushes/reconcile", bootstrap, nil, nil})
		w.runPushes(p)
		w.same("the comparison", w.want(200, call{method: "GET", path: "/api/v1/sagas/" + saga["id"].(string), key: bootstrap})["state"],
			"COMPLETED")
		w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = 78`).Scan(&n))
		return n
	}
	w.same("events without a difference", compared(), 0)
	p.counts["of another program"] = big.NewInt(2)
	w.same("events with one", compared(), 1)
	var difference string
	w.must(w.pool.QueryRow(t.Context(), `SELECT body ->> 'difference' FROM event_log_rows WHERE subject = 78`).Scan(&difference))
	w.same("the difference", difference, "2")
}

// Each state of a push has one meaning for all of its readers: those that send it, those that compare totals, and those that decide which
// are due.
func TestP8_EachReaderOfPushesKnowsEachState(t *testing.T) {
	const settle, hour = time.Hour, "interval '1 hour'"
	w, a := newServiceWithAccount(t)
	tenant, kept := uuid.MustParse(a.id), &pushes.Pushes{Store: w.store}
	key, _ := lastMonth()
	id := w.push(a.id, 0, "PENDING")
	window := push.Window{Address: push.Address{Provider: "stripe", Customer: "cus_NffrFeUfNV2Hib", Event: "api_calls"},
		Month: time.Now().UTC().Format("2006-01")}
	for _, c := range []struct {
		state, unknownSince, deliveredAt, nextAt string
		total                                    string // delivered, undecided, on the way, as a comparison counts it
		open                                     bool   // the saga waits for it
		retry                                    string // code against a retry
	}{
		{"PENDING", "NULL", "NULL", "now()", "0 0 0", true, "push_pending"},
		{"UNKNOWN", "now()", "NULL", "now()", "0 0 1", true, ""},
		{"UNKNOWN", "now() - 24 * " + hour, "NULL", "NULL", "0 1 0", true, "push_unknown"},
		{"DELIVERED", "now()", "now()", "NULL", "0 0 1", false, "push_delivered"}, // the total may not have it yet
		{"DELIVERED", "now() - 3 * " + hour, "now() - 2 * " + hour, "NULL", "12 0 0", false, "push_delivered"},
		{"DELIVERED", "NULL", "now() - 2 * " + hour, "NULL", "0 0 0", false, "push_delivered"}, // billed in another way
		{"FAILED", "NULL", "NULL", "NULL", "0 0 0", true, ""},
		{"FAILED", "now()", "NULL", "NULL", "0 0 1", true, ""},
		{"FAILED", "now() - 24 * " + hour, "NULL", "NULL", "0 1 0", true, "push_unknown"},
	} {
		what := c.state + ", unknown since " + c.unknownSince + ", delivered " + c.deliveredAt
		w.exec(fmt.Sprintf(`UPDATE pushes SET counted_at = now(), state = '%s', unknown_since = %s, delivered_at = %s, next_at = %s`,
			c.state, c.unknownSince, c.deliveredAt, c.nextAt))
		sums, err := kept.PushSums(t.Context(), window, settle)
		w.must(err)
		w.same(what+": the comparison", fmt.Sprint(sums.Delivered, len(sums.Undecided), sums.OnTheWay), c.total)
		open, now, err := kept.OpenPushes(t.Context(), tenant, key)
		w.must(err)
		w.same(what+": open", len(open) == 1, c.open)
		p, err := (pushes.Reader{Catalogue: &store.Catalogue{Pool: w.pool}}).Push(t.Context(), uuid.MustParse(id))
		w.must(err)
		w.same(what+": the saga waits", p.Open(), c.open)
		code := ""
		if fault := p.Retry("r", "x", now); fault != nil {
			code = fault.Code
		}
		w.same(what+": a retry", code, c.retry)
		w.must(kept.ChangePushes(t.Context(), tenant, func(tx billing.PushTx) error {
			due, err := tx.Due(domain.Closing{TenantID: tenant, PeriodKey: key, Snapshot: 1})
			if err != nil || len(due) != 1 || due[0].Pushed.Int64() != 12 {
				t.Errorf("%s: due %+v, %v", what, due, err)
			}
			return err
		}))
	}
}

// The provider's total has a push some time after its delivery. Until then it must not show that another push was not counted, which would
// be sent again.
func TestP8_ADeliveryOfAMomentAgoIsNotCompared(t *testing.T) {
	w, a := newServiceWithAccount(t)
	delivered, unknown := w.push(a.id, 0, "PENDING"), w.push(a.id, 1, "UNKNOWN")
	w.exec(`UPDATE pushes SET counted_at = now(), unknown_since = now() - interval '25 hours'`)
	w.exec(`UPDATE pushes SET state = 'DELIVERED', delivered_at = now() WHERE n = 0`)
	// of the two the total has the one whose answer was lost
	p := &countingProvider{w: w, counts: map[string]*big.Int{unknown: big.NewInt(12)}}
	c := w.pushes(p)
	c.Settle = time.Hour
	compare := func() string {
		_, err := c.CompareKind().Run(t.Context(), &domain.Saga{ID: newID(), Kind: billing.SagaBillingCompare,
			CreatedAt: time.Now().Add(time.Minute), State: domain.SagaRunning})
		w.must(err)
		return fmt.Sprint(w.listedPushes("", "state"))
	}
	w.same("a moment later", compare(), "[UNKNOWN DELIVERED]")
	w.exec(`UPDATE pushes SET delivered_at = now() - interval '2 hours' WHERE state = 'DELIVERED'`)
	p.counts[delivered] = big.NewInt(12)
	w.same("once the total has it", compare(), "[DELIVERED DELIVERED]")
}

// approved sends an event about a closed period, and approves its adjustment.
func (w *testService) approved(a *account, sent map[string]any) {
	w.Helper()
	w.accept(a, sent)
	w.fold()
	w.approve(a)
}

// A customer that is set again gets the rest of each period that was pushed before, also of one that ended more than 35 days ago: it counts
// now. A period that was never pushed is too old then.
func TestP8_ACustomerThatIsSetAgainGetsTheRestOfOldPeriods(t *testing.T) {
	w, a := newServiceWithAccount(t)
	set := call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_1"}`}
	unset := call{method: "DELETE", path: set.path, key: bootstrap}
	ago := func(months int) string {
		return time.Now().UTC().AddDate(0, -months, -time.Now().UTC().Day()+1).Format("2006-01")
	}
	at := func(id, month string) map[string]any {
		return event(id, map[string]any{"amount": 10, "timestamp": month + "-15T12:00:00Z"})
	}
	pushed, never := ago(3), ago(4)
	w.accept(a, at("one", pushed), at("two", never))
	w.closedPeriod(a, never) // without a customer
	w.want(200, set)
	p := &countingProvider{w: w, counts: map[string]*big.Int{}}
	w.closedPeriod(a, pushed)
	w.runPushes(nil)                               // stored, and not sent
	w.exec(`UPDATE pushes SET counted_at = now()`) // as if the period had been closed in time
	w.due()
	w.runPushes(p)
	w.want(200, unset)
	w.approved(a, correction("fix", "one", 13))
	w.runPushes(p)
	w.same("without a customer", p.sum(), 10)
	w.want(200, set)
	w.runPushes(p)
	w.same("set again", w.listedPushes("", "periodKey", "amount", "state"), []string{pushed + " 3 DELIVERED", pushed + " 10 DELIVERED"})
	w.same("the provider's sum", p.sum(), 13)
}
