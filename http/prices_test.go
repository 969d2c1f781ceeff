package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// putPrice defines a price of a key.
func (w *testService) putPrice(key, members string) {
	w.Helper()
	if got := w.do(call{"PUT", "/api/v1/prices/" + key, bootstrap, nil, `{"name":"` + key + `",` + members + `}`}); got.status/100 != 2 {
		w.Fatalf("%d %s", got.status, got.body)
	}
}

// priced gives the plan of accounts prices: api_calls has "calls", storage "stored".
func (w *testService) priced() {
	w.Helper()
	w.putPrice("calls",
		`"currency":"EUR","model":"graduated","tiers":[{"upTo":10,"microUnits":0},{"microUnits":250000,"flatMicroUnits":1000000}]`)
	w.putPrice("stored", `"currency":"USD","model":"package","packageSize":4,"microUnits":500000`)
	w.pricedPlan("calls", "stored")
}

func (w *testService) pricedPlan(calls, stored string) {
	w.Helper()
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil,
		`{"name":"Basic","entitlements":[{"feature":"api_calls","limit":1000,"resetPeriod":"MONTHLY","price":"` + calls +
			`"},{"feature":"storage","limit":null,"resetPeriod":"MONTHLY","price":"` + stored + `"}]}`})
}

func TestPricesAreDefinedAndRead(t *testing.T) {
	w := newTestService(t)
	for key, body := range map[string]string{
		"a":   `{"currency":"EUR","key":"a","microUnits":0,"model":"per_unit","name":"N","version":1}`,
		"A.b": `{"currency":"JPY","key":"A.b","microUnits":9007199254740991,"model":"package","name":"N","packageSize":1000,"version":1}`,
		"tier": `{"currency":"USD","key":"tier","model":"volume","name":"N","tiers":[{"flatMicroUnits":3,"microUnits":0,"upTo":1},` +
			`{"microUnits":2,"upTo":null}],"version":1}`,
	} {
		put := call{"PUT", "/api/v1/prices/" + key, bootstrap, nil, strings.NewReplacer(`"key":"`+key+`",`, "", `,"version":1`,
			"").Replace(body)}
		for i, got := range []map[string]any{w.want(201, put), w.want(200, put), w.want(200,
			call{method: "GET", path: put.path, key: bootstrap})} {
			if text, err := json.Marshal(got); err != nil || string(text) != body {
				t.Errorf("answer %d is %s instead of %s", i, text, body)
			}
		}
	}
	w.same("the list", w.adjustmentsAt("/api/v1/prices", "key"), []string{"A.b", "a", "tier"})
	page := w.want(200, call{method: "GET", path: "/api/v1/prices?limit=2", key: bootstrap})
	w.same("the rest", w.adjustmentsAt("/api/v1/prices?limit=2&cursor="+page["nextCursor"].(string), "key"), []string{"tier"})
	var recorded int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = 39`).Scan(&recorded))
	w.same("changes that are recorded", recorded, 3)
}

// charges returns the lines of charges and the totals.
func (w *testService) charges(path string) (lines []string, totals string) {
	w.Helper()
	got := w.want(200, call{method: "GET", path: path, key: bootstrap})
	for _, c := range got["data"].([]any) {
		m := c.(map[string]any)
		key := "-"
		if p, ok := m["price"].(map[string]any); ok {
			key = p["key"].(string)
		}
		lines = append(lines, key+" "+valuesOf(m, "feature", "amount", "microUnits", "decimal", "currency"))
	}
	for _, c := range got["totals"].([]any) {
		totals += valuesOf(c.(map[string]any), "currency", "microUnits", "decimal", "lines") + "; "
	}
	return lines, totals + valuesOf(got, "unpriced", "basis", "snapshot")
}

// An open period is charged by its live figures, a closed one by its billable amounts, and each currency has a total of its own.
func TestP8_ChargesOfAnOpenAndOfAClosedPeriod(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.priced()
	a := w.newAccount("A")
	_, at := lastMonth()
	stored := func(id string, amount int) map[string]any {
		return event(id, map[string]any{"feature": "storage", "amount": amount, "timestamp": at})
	}
	w.accept(a, old("u1", 10), old("u2", 4), stored("s1", 5))
	w.fold()
	key, _ := lastMonth()
	path := periodsOf(a) + "/" + key
	check := func(what, query string, want ...string) {
		t.Helper()
		lines, totals := w.charges(path + "/charges" + query)
		w.same(what, strings.Join(append(lines, totals), " | "), strings.Join(want, " | "))
	}
	check("open", "", "calls api_calls 14 2000000 2.00 EUR", "stored storage 5 1000000 1.00 USD",
		"EUR 2000000 2.00 1; USD 1000000 1.00 1; 0 net <nil>")
	w.closed(a)
	hash := func() any { return w.want(200, call{method: "GET", path: path, key: bootstrap})["chargesHash"] }
	frozen := hash()
	back := retraction("r1", "s1")
	back["feature"] = "storage"
	w.accept(a, correction("c1", "u2", 2), back)
	w.fold()
	check("closed", "", "calls api_calls 14 2000000 2.00 EUR", "stored storage 5 1000000 1.00 USD",
		"EUR 2000000 2.00 1; USD 1000000 1.00 1; 0 billable 1")
	w.approve(a)
	check("adjusted", "", "calls api_calls 12 1500000 1.50 EUR", "stored storage 0 0 0.00 USD",
		"EUR 1500000 1.50 1; USD 0 0.00 1; 0 billable 1")
	w.want(200, call{"POST", path + "/reopen", bootstrap, nil, `{"reason":"r"}`})
	w.accept(a, old("u3", 8))
	w.fold()
	check("reopened", "", "calls api_calls 20 3500000 3.50 EUR", "stored storage 0 0 0.00 USD", "EUR 3500000 3.50 1; USD 0 0.00 1; 0 net 1")
	check("the snapshot", "?snapshot=1", "calls api_calls 12 1500000 1.50 EUR", "stored storage 0 0 0.00 USD",
		"EUR 1500000 1.50 1; USD 0 0.00 1; 0 billable 1")
	w.putPrice("calls",
		`"currency":"EUR","model":"volume","tiers":[{"upTo":10,"microUnits":0},{"microUnits":250000,"flatMicroUnits":1000000}]`)
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"prices":"current"}`})
	check("by another price", "?snapshot=1", "calls api_calls 12 1500000 1.50 EUR", "stored storage 0 0 0.00 USD",
		"EUR 1500000 1.50 1; USD 0 0.00 1; 0 billable 1")
	if text, _ := frozen.(string); len(text) != 64 || hash() != frozen {
		t.Errorf("the hash of the charges was %v and is %v", frozen, hash())
	}
	w.refused(w.do(call{method: "GET", path: path + "/charges?snapshot=2", key: bootstrap}), 404, "snapshot_not_found")
	w.refused(w.do(call{method: "GET", path: periodsOf(a) + "/2026-13/charges", key: bootstrap}), 400, "period_key_invalid")
}

// A line without a price is listed, and counts in no total. A plan that is applied later charges later usage only.
func TestALineWithoutAPriceIsListed(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 12), event("now", map[string]any{"amount": 12}))
	w.fold()
	key, _ := lastMonth()
	last, month := periodsOf(a)+"/"+key+"/charges", periodsOf(a)+"/"+now()[:7]+"/charges"
	lines, totals := w.charges(last)
	w.same("no price", fmt.Sprint(lines, " ", totals), "[- api_calls 12 <nil> <nil> <nil>] 1 net <nil>")
	w.priced()
	w.patchSubscription(a, `{"plan":"basic"}`)
	w.accept(a, old("u2", 1), event("later", map[string]any{"amount": 12, "timestamp": now()}))
	w.fold()
	lines, _ = w.charges(last)
	w.same("the earlier period", lines, "[- api_calls 13 <nil> <nil> <nil>]")
	lines, _ = w.charges(month)
	w.same("this period", lines, "[- api_calls 12 <nil> <nil> <nil> calls api_calls 12 1500000 1.50 EUR]")
}

func (w *testService) patchSubscription(a *account, body string) {
	w.Helper()
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, body})
}

// Pages have the totals of all lines, and stay with the amounts that they began with.
func TestChargesHavePages(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.priced()
	a, b := w.newAccount("A"), w.newAccount("B")
	_, at := lastMonth()
	for _, of := range []*account{a, b} {
		w.accept(of, old("u1", 14), event("s1", map[string]any{"feature": "storage", "amount": 5, "timestamp": at}))
	}
	w.fold()
	key, _ := lastMonth()
	path := periodsOf(a) + "/" + key + "/charges?limit=1"
	next := func(path string) string {
		return "&cursor=" + w.want(200, call{method: "GET", path: path, key: bootstrap})["nextCursor"].(string)
	}
	live := next(path)
	w.closed(a)
	frozen := next(path)
	w.want(200, call{"POST", periodsOf(a) + "/" + key + "/reopen", bootstrap, nil, `{"reason":"r"}`})
	for cursor, basis := range map[string]string{live: "net", frozen: "billable"} {
		lines, totals := w.charges(path + cursor)
		w.same(basis, fmt.Sprint(lines, " ", totals), "[stored storage 5 1000000 1.00 USD] EUR 2000000 2.00 1; USD 1000000 1.00 1; 0 "+
			basis+" 1")
	}
	w.refused(w.do(call{method: "GET", path: path + "&snapshot=2" + frozen, key: bootstrap}), 400, "cursor_invalid")
	w.refused(w.do(call{method: "GET", path: periodsOf(b) + "/" + key + "/charges?limit=1" + frozen, key: bootstrap}), 400,
		"cursor_invalid")
}
