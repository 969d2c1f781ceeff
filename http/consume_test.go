package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
)

func consuming(key, feature, id string, amount any) call {
	return call{"POST", "/api/v1/entitlements/" + feature + "/consume", key, nil, map[string]any{"eventId": id, "amount": amount}}
}

// used reads the account of api_calls in the present month.
func (w *testService) used(tenant string) string {
	w.Helper()
	var used string
	w.must(w.pool.QueryRow(w.Context(), `SELECT coalesce(sum(used), 0)::text FROM quota_accounts WHERE tenant_id = $1 AND feature = 'api_calls'`, tenant).Scan(&used))
	return used
}

func TestP7_ConsumeGrantsUpToTheLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	got := w.want(200, consuming(a.key, "api_calls", "req-1", 998))
	for member, want := range map[string]string{"allowed": "true", "feature": "api_calls", "eventId": "req-1", "amount": "998", "limit": "1000", "used": "998", "held": "0", "remaining": "2"} {
		if fmt.Sprint(got[member]) != want {
			t.Errorf("%s is %v instead of %s", member, got[member], want)
		}
	}
	if reset := fmt.Sprint(got["resetAt"]); !strings.HasSuffix(reset, "-01T00:00:00Z") {
		t.Errorf("resetAt is %s", reset)
	}
	before := w.stored()
	w.refused(w.do(consuming(a.key, "api_calls", "too-much", 5)), 409, "quota_exceeded")
	refused := w.do(consuming(a.key, "api_calls", "req-2", 3))
	w.refused(refused, 409, "quota_exceeded")
	var p map[string]any
	w.must(json.Unmarshal(refused.body, &p))
	for member, want := range map[string]string{"limit": "1000", "used": "998", "held": "0", "remaining": "2"} {
		if fmt.Sprint(p[member]) != want {
			t.Errorf("the refusal has the %s %v instead of %s", member, p[member], want)
		}
	}
	if w.stored() != before {
		t.Error("a refusal is stored")
	}
	w.want(200, consuming(a.key, "api_calls", "req-2", 2)) // a refused request is not remembered
	if w.used(a.id) != "1000" {
		t.Errorf("%s are used", w.used(a.id))
	}
	for series, want := range map[string]int{`meterplex_quota_denied_total{tenant_class="small"}`: 2, `meterplex_events_ingested_total{tenant_class="small",verdict="accepted"}`: 2,
		`meterplex_events_ingested_total{tenant_class="small",verdict="rejected"}`: 2} {
		if n := w.metric(series); n != want {
			t.Errorf("%s is %d instead of %d", series, n, want)
		}
	}
	w.want(200, consuming(a.key, "storage", "s-1", 5)) // METERED: no limit, no account
	w.refused(w.do(consuming(a.key, "sso", "b-1", 1)), 409, "not_entitled")
	w.refused(w.do(consuming(a.key, "nothing", "n-1", 1)), 404, "feature_not_found")
}

func TestP7_ARepeatedConsumeGetsItsFirstAnswer(t *testing.T) {
	w, a := newServiceWithAccount(t)
	sent := call{"POST", "/api/v1/entitlements/api_calls/consume", a.key, nil, `{"eventId":"r","amount":600,"metadata":{"model":"x","n":1}}`}
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
	if repeated := w.do(sent); string(repeated.body) != string(first.body) {
		t.Errorf("after the end of the subscription: %d %s", repeated.status, repeated.body)
	}
	if w.used(a.id) != "1000" {
		t.Errorf("%s are used", w.used(a.id))
	}
}

func TestP7_ItemsAreGrantedTogetherOrNotAtAll(t *testing.T) {
	w, a := newServiceWithAccount(t)
	together := func(items string) call {
		return call{"POST", "/api/v1/entitlements/consume", a.key, nil, `{"items":[` + items + `]}`}
	}
	item := func(feature, id string, amount int) string {
		return fmt.Sprintf(`{"feature":%q,"eventId":%q,"amount":%d}`, feature, id, amount)
	}
	before := w.stored()
	for _, refusal := range []struct {
		items, code, pointer string
		status               int
	}{
		{item("api_calls", "1", 900) + "," + item("storage", "2", 7) + "," + item("api_calls", "3", 101), "quota_exceeded", "/items/2", 409},
		{item("api_calls", "1", 900) + "," + item("nothing", "2", 7), "feature_not_found", "/items/1", 404},
		{item("sso", "1", 900) + "," + item("storage", "2", 7), "not_entitled", "/items/0", 409},
	} {
		refused := w.do(together(refusal.items))
		w.refused(refused, refusal.status, refusal.code)
		if !strings.Contains(string(refused.body), `"pointer":"`+refusal.pointer+`"`) || w.stored() != before || w.used(a.id) != "0" {
			t.Errorf("%s; %d rows are stored, %s are used", refused.body, w.stored()-before, w.used(a.id))
		}
	}
	sent := together(item("api_calls", "1", 900) + "," + item("storage", "2", 7) + "," + item("api_calls", "3", 100))
	first := w.do(sent)
	if again := w.do(sent); first.status != 200 || string(again.body) != string(first.body) || w.used(a.id) != "1000" {
		t.Errorf("%d %s, then %s; %s are used", first.status, first.body, again.body, w.used(a.id))
	}
	conflict := w.do(together(item("storage", "4", 1) + "," + item("api_calls", "1", 1)))
	w.refused(conflict, 409, "payload_conflict")
	if !strings.Contains(string(conflict.body), `"pointer":"/items/1"`) {
		t.Errorf("%s", conflict.body)
	}
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

// The verdict on admitted usage is its admission, and it counts once in each projection.
func TestP7_AdmittedUsageIsCountedOnceEverywhere(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(200, consuming(a.key, "api_calls", "1", 7))
	w.ingest(a, batch(event("2", map[string]any{"amount": 5})))
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	w.want(201, call{"POST", "/api/v1/tenants/" + a.id + "/subscriptions", bootstrap, nil, map[string]any{"plan": "basic"}})
	w.fold()
	if got := w.want(200, call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: a.key}); fmt.Sprint(got["used"], " ", got["remaining"]) != "12 988" {
		t.Errorf("%v", got)
	}
	if w.used(a.id) != "12" {
		t.Errorf("%s are used", w.used(a.id))
	}
	figures := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates", key: a.key})["data"].([]any)
	sum := 0
	for _, f := range figures {
		var n int
		fmt.Sscan(fmt.Sprint(f.(map[string]any)["amount"]), &n)
		sum += n
	}
	if sum != 12 {
		t.Errorf("the figures are %v", figures)
	}
	receipt := w.want(200, call{method: "GET", path: "/api/v1/usage/events/1", key: a.key})
	if receipt["status"] != "AGGREGATED" {
		t.Errorf("%v", receipt)
	}
	if list := w.want(200, call{method: "GET", path: "/api/v1/usage/events", key: a.key})["data"].([]any); len(list) != 2 {
		t.Errorf("%v", list)
	}
	identity := w.want(200, call{method: "GET", path: "/api/v1/system/identity", key: bootstrap})
	if identity["holds"] != true || fmt.Sprint(identity["accepted"]) != "2" {
		t.Errorf("%v", identity)
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
	sent := batch(event("1", map[string]any{"amount": 6, "metadata": map[string]any{"m": "<x>"}}), event("2", map[string]any{"amount": 5}), event("3", map[string]any{"amount": 4}),
		event("4", map[string]any{"feature": "storage", "amount": 100}), event("5", map[string]any{"timestamp": "2026-01-01T00:00:00Z"}))
	send := func(body any) map[string]any {
		return w.want(202, call{"POST", "/api/v1/usage/events", a.writer, nil, body}) // without usage:backfill
	}
	got := send(sent)
	verdicts := fmt.Sprint(got["events"])
	if fmt.Sprint(got["accepted"], " ", got["rejected"]) != "3 2" || !strings.Contains(verdicts, "code:quota_exceeded eventId:2") || !strings.Contains(verdicts, "code:timestamp_too_old eventId:5") {
		t.Errorf("%v", got)
	}
	if got = send(sent); fmt.Sprint(got["accepted"], " ", got["duplicates"], " ", got["rejected"]) != "0 3 2" || w.used(a.id) != "10" {
		t.Errorf("%v; %s are used", got, w.used(a.id))
	}
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{
		map[string]any{"feature": "api_calls", "limit": 10, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"},
	}}})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"plan":"basic"}`})
	if got = send(sent); fmt.Sprint(got["accepted"], " ", got["duplicates"], " ", got["rejected"]) != "1 3 1" { // the present plan records event 2
		t.Errorf("after the change of the plan: %v", got)
	}
	w.refused(w.do(consuming(a.key, "api_calls", "c", 1)), 409, "quota_exceeded")
	w.fold()
	if got := w.want(200, call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: a.key}); fmt.Sprint(got["used"], " ", got["remaining"]) != "15 0" || w.used(a.id) != "15" {
		t.Errorf("%v; %s in the account", got, w.used(a.id))
	}
}

// Usage with a timestamp from before the plan enforced its limit is refused above it, too.
func TestP7_ATimestampAvoidsNoEnforcedLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	before := time.Now().UTC().Format(time.RFC3339Nano)
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{
		map[string]any{"feature": "api_calls", "limit": 10, "limitBehavior": "HARD", "resetPeriod": "MONTHLY", "onIngest": "enforce"}}}})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"plan":"basic"}`})
	got := w.want(202, call{"POST", "/api/v1/usage/events", a.writer, nil, batch(
		event("1", map[string]any{"amount": 8, "timestamp": before}), event("2", map[string]any{"amount": 3, "timestamp": before}))})
	if fmt.Sprint(got["accepted"], " ", got["rejected"]) != "1 1" || w.used(a.id) != "8" {
		t.Errorf("%v; %s are used", got, w.used(a.id))
	}
}

func TestAccountsAreListedBesideTheirLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	at := w.want(200, consuming(a.key, "api_calls", "1", 7))["position"]
	w.want(200, consuming(b.key, "api_calls", "1", 9))
	w.want(200, consuming(a.key, "storage", "2", 5)) // METERED: no account
	path := "/api/v1/quota/accounts?tenantId=" + a.id
	got := w.want(200, call{method: "GET", path: path, key: bootstrap})
	list := got["data"].([]any)
	if len(list) != 1 || got["nextCursor"] != nil {
		t.Fatalf("%v", got)
	}
	first := list[0].(map[string]any)
	if fmt.Sprint(first["tenantId"], " ", first["feature"], " ", first["used"], " ", first["held"], " ", first["limit"], " ", first["limitBehavior"]) != a.id+" api_calls 7 0 1000 HARD" {
		t.Errorf("%v", first)
	}
	if head := fmt.Sprint(got["headPosition"]); head == fmt.Sprint(at) || !strings.HasPrefix(head, strings.Split(fmt.Sprint(at), "-")[0]+"-") {
		t.Errorf("the head is %s, the consumption before the last is at %s", head, at)
	}
	if list := w.want(200, call{method: "GET", path: path + "&feature=storage", key: bootstrap})["data"].([]any); len(list) != 0 {
		t.Errorf("%v", list)
	}
	w.ingest(a, batch(event("old", map[string]any{"timestamp": "2026-01-01T00:00:00Z"})))
	w.fold()
	one := w.want(200, call{method: "GET", path: path + "&limit=1", key: bootstrap})
	two := w.want(200, call{method: "GET", path: path + "&limit=1&cursor=" + fmt.Sprint(one["nextCursor"]), key: bootstrap})
	if periods := fmt.Sprint(one["data"].([]any)[0].(map[string]any)["periodKey"], two["data"].([]any)[0].(map[string]any)["periodKey"]); !strings.HasPrefix(periods, "2026-01") || two["nextCursor"] != nil {
		t.Errorf("%v, then %v", one, two)
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/quota/accounts", key: bootstrap}), 400, "parameter_missing")
	w.refused(w.do(call{method: "GET", path: path + "&periodKey=2026-13", key: bootstrap}), 400, "parameter_invalid")
	w.refused(w.do(call{method: "GET", path: path, key: a.key}), 403, "forbidden")
}

// The clocks of instances differ: a change holds for the requests behind it in the log, also those that an instance
// decides whose clock is behind that of the changing instance.
func TestP7_AChangeByAFastClockHoldsAtOnceForConsumptions(t *testing.T) {
	w := newTestService(t)
	fast := *w
	ahead := w.server()
	ahead.Catalogue = &commands.Catalogue{Store: w.store, Now: func() time.Time { return time.Now().Add(time.Hour) }, NewID: newID, NewSecret: ahead.Catalogue.NewSecret}
	fast.serve(ahead)
	w.catalogue()
	a := w.newAccount("A")
	subscription := "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription
	limit := func(n int) {
		fast.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{
			map[string]any{"feature": "api_calls", "limit": n, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"}}}})
		fast.want(200, call{"PATCH", subscription, bootstrap, nil, `{"plan":"basic"}`})
	}
	w.want(200, consuming(a.key, "api_calls", "1", 10))
	limit(10)
	w.refused(w.do(consuming(a.key, "api_calls", "2", 1)), 409, "quota_exceeded")
	limit(2000)
	if got := w.want(200, consuming(a.key, "api_calls", "3", 1500)); fmt.Sprint(got["limit"]) != "2000" {
		t.Errorf("%v", got)
	}
	fast.want(200, call{"PATCH", subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	w.refused(w.do(consuming(a.key, "api_calls", "4", 1)), 409, "no_active_subscription")
}
