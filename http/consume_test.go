package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func consuming(key, feature, id string, amount any) call {
	return call{"POST", "/api/v1/entitlements/" + feature + "/consume", key, nil, map[string]any{"eventId": id, "amount": amount}}
}

// used reads the account of api_calls in the present month.
func (w *testService) used(tenant string) string {
	w.Helper()
	var used string
	w.must(w.pool.QueryRow(w.Context(),
		`SELECT coalesce(sum(used), 0)::text FROM quota_accounts WHERE tenant_id = $1 AND feature = 'api_calls'`, tenant).Scan(&used))
	return used
}

func TestP7_ConsumeGrantsUpToTheLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	got := w.want(200, consuming(a.key, "api_calls", "req-1", 998))
	w.same("granted", valuesOf(got, "allowed", "feature", "eventId", "amount", "limit", "used", "held", "remaining"),
		"true api_calls req-1 998 1000 998 0 2")
	w.holds("resetAt", got["resetAt"].(string), "-01T00:00:00Z")
	before := w.stored()
	w.refused(w.do(consuming(a.key, "api_calls", "too-much", 5)), 409, "quota_exceeded")
	p := w.refused(w.do(consuming(a.key, "api_calls", "req-2", 3)), 409, "quota_exceeded")
	w.same("the refusal", []json.Number{p.Limit, p.Used, p.Held, p.Remaining}, "[1000 998 0 2]")
	w.same("stored by a refusal", w.stored(), before)
	w.want(200, consuming(a.key, "api_calls", "req-2", 2)) // a refused request is not remembered
	w.same("used", w.used(a.id), "1000")
	for series, want := range map[string]int{`meterplex_quota_denied_total{tenant_class="small"}`: 2,
		`meterplex_events_ingested_total{tenant_class="small",verdict="accepted"}`: 2,
		`meterplex_events_ingested_total{tenant_class="small",verdict="rejected"}`: 2} {
		w.same(series, w.metric(series), want)
	}
	w.want(200, consuming(a.key, "storage", "s-1", 5)) // METERED: no limit, no account
}

func TestP7_ARepeatedConsumeGetsItsFirstAnswer(t *testing.T) {
	w, a := newServiceWithAccount(t)
	sent := call{"POST", "/api/v1/entitlements/api_calls/consume", a.key, nil,
		`{"eventId":"r","amount":600,"metadata":{"model":"x","n":1}}`}
	first := w.do(sent)
	w.want(200, consuming(a.key, "api_calls", "other", 400)) // the limit is reached
	again := sent
	again.body = `{"metadata": {"n":1.0, "model":"x"}, "amount": 600, "eventId": "r"}`
	for _, c := range []call{sent, again} {
		if repeated := w.do(c); first.status != 200 || repeated.status != 200 || string(repeated.body) != string(first.body) {
			t.Errorf("%d %s\nis not the first answer, %d %s", repeated.status, repeated.body, first.status, first.body)
		}
	}
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	w.same("after the end of the subscription", string(w.do(sent).body), string(first.body))
	w.same("used", w.used(a.id), "1000")
}

func TestP7_ItemsAreGrantedTogetherOrNotAtAll(t *testing.T) {
	w, a := newServiceWithAccount(t)
	item := func(feature, id string, amount int) string {
		return fmt.Sprintf(`{"feature":%q,"eventId":%q,"amount":%d}`, feature, id, amount)
	}
	together := func(items ...string) call {
		return call{"POST", "/api/v1/entitlements/consume", a.key, nil, `{"items":[` + strings.Join(items, ",") + `]}`}
	}
	before := w.stored()
	exceeded := w.do(together(item("api_calls", "1", 900), item("storage", "2", 7), item("api_calls", "3", 101)))
	w.same("the item", w.refused(exceeded, 409, "quota_exceeded").Errors[0].Pointer, "/items/2")
	w.same("stored, and used", fmt.Sprint(w.stored()-before, w.used(a.id)), "00")
	sent := together(item("api_calls", "1", 900), item("storage", "2", 7), item("api_calls", "3", 100))
	first := w.do(sent)
	w.same("again", string(w.do(sent).body), string(first.body))
	w.same("granted, and used", fmt.Sprint(first.status, " ", w.used(a.id)), "200 1000")
	conflict := w.do(together(item("storage", "4", 1), item("api_calls", "1", 1)))
	w.same("the item", w.refused(conflict, 409, "payload_conflict").Errors[0].Pointer, "/items/1")
	w.want(200, together(item("storage", "4", 1))) // it was not the first with its key
}

// Requests for the last units arrive at once, also for the same ids.
func TestP7_AStampedeGetsExactlyTheLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(200, consuming(a.key, "api_calls", "before", 950))
	var granted, bodies sync.Map
	var all sync.WaitGroup
	for client := range 16 {
		all.Go(func() {
			for n := range 20 {
				id := fmt.Sprint((client*7 + n) % 100)
				got := w.do(consuming(a.key, "api_calls", id, 1))
				if got.status == 200 {
					granted.Store(id, true)
					if first, known := bodies.LoadOrStore(id, string(got.body)); known && first != string(got.body) {
						t.Errorf("%s got %s, then %s", id, first, got.body)
					}
				} else if got.status != 409 {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	all.Wait()
	n := 0
	granted.Range(func(any, any) bool { n++; return true })
	if n != 50 || w.used(a.id) != "1000" {
		t.Errorf("%d requests of 50 were granted, %s are used", n, w.used(a.id))
	}
}

// A plan that enforces its limit on ingest refuses the events above it, each by itself, and a repetition of a granted one is a
// duplicate.
func TestP7_IngestIsRefusedAboveAnEnforcedLimit(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{
		map[string]any{"feature": "api_calls", "limit": 10, "limitBehavior": "HARD", "resetPeriod": "MONTHLY", "onIngest": "enforce"},
		map[string]any{"feature": "storage", "limit": nil, "resetPeriod": "NEVER"},
	}}})
	a := w.newAccount("A")
	sent := batch(event("1", map[string]any{"amount": 6, "metadata": map[string]any{"m": "<x>"}}), event("2", map[string]any{"amount": 5}),
		event("3", map[string]any{"amount": 4}),
		event("4", map[string]any{"feature": "storage", "amount": 100}), event("5", map[string]any{"timestamp": "2026-01-01T00:00:00Z"}))
	send := func(body any) map[string]any {
		return w.want(202, call{"POST", "/api/v1/usage/events", a.writer, nil, body}) // without usage:backfill
	}
	got := send(sent)
	verdicts := fmt.Sprint(got["events"])
	if fmt.Sprint(got["accepted"], " ", got["rejected"]) != "3 2" || !strings.Contains(verdicts, "code:quota_exceeded eventId:2") ||
		!strings.Contains(verdicts, "code:timestamp_too_old eventId:5") {
		t.Errorf("%v", got)
	}
	w.same("a CloudEvent", w.outcome(409, call{key: a.writer, header: map[string]string{"ce-specversion": "1.0", "ce-id": "c",
		"ce-source": "/x",
		"ce-type":   "api_calls", "ce-time": now()}, body: `{"amount":5}`}), "quota_exceeded <nil>")
	if got = send(sent); fmt.Sprint(got["accepted"], " ", got["duplicates"], " ", got["rejected"]) != "0 3 2" || w.used(a.id) != "10" {
		t.Errorf("%v; %s are used", got, w.used(a.id))
	}
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{
		map[string]any{"feature": "api_calls", "limit": 10, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"},
	}}})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"plan":"basic"}`})
	if got = send(sent); fmt.Sprint(got["accepted"], " ", got["duplicates"], " ",
		got["rejected"]) != "1 3 1" { // the present plan records event 2
		t.Errorf("after the change of the plan: %v", got)
	}
	w.refused(w.do(consuming(a.key, "api_calls", "c", 1)), 409, "quota_exceeded")
	w.fold()
	if got := w.want(200, call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: a.key}); fmt.Sprint(got["used"], " ",
		got["remaining"]) != "15 0" || w.used(a.id) != "15" {
		t.Errorf("%v; %s in the account", got, w.used(a.id))
	}
}

func TestAccountsAreListedBesideTheirLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	at := w.want(200, consuming(a.key, "api_calls", "1", 7))["position"].(string)
	w.want(200, consuming(w.newAccount("B").key, "api_calls", "1", 9))
	w.want(200, consuming(a.key, "storage", "2", 5)) // METERED: no account
	path := "/quota/accounts?tenantId=" + a.id
	got := w.get(path)
	list := w.adjustmentsAt("/api/v1"+path, "tenantId", "feature", "used", "held", "limit", "limitBehavior")
	w.same("the accounts", list, []string{a.id + " api_calls 7 0 1000 HARD"})
	if head := got["headPosition"].(string); head == at || !strings.HasPrefix(head, strings.Split(at, "-")[0]+"-") {
		t.Errorf("the head is %s, the consumption before the last is at %s", head, at)
	}
	w.same("of another feature", len(w.get(path + "&feature=storage")["data"].([]any)), 0)
	w.ingest(a, batch(event("old", map[string]any{"timestamp": "2026-01-01T00:00:00Z"})))
	w.fold()
	var periods []any
	for _, account := range w.entries(bootstrap, "/api/v1"+path+"&limit=1") {
		periods = append(periods, account["periodKey"])
	}
	w.same("in pages", periods, []any{"2026-01", now()[:7]})
	w.refused(w.do(call{method: "GET", path: "/api/v1" + path + "&periodKey=2026-13", key: bootstrap}), 400, "parameter_invalid")
}
