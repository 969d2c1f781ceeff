package http_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// chargedLines returns members of the lines of charges, and the sum.
func (w *testService) chargedLines(path string) string {
	w.Helper()
	got := w.want(200, call{method: "GET", path: path, key: bootstrap})
	var lines []string
	for _, c := range got["data"].([]any) {
		m := c.(map[string]any)
		version := "-"
		if p, ok := m["price"].(map[string]any); ok {
			version = fmt.Sprint(p["key"], p["version"])
		}
		lines = append(lines, valuesOf(m, "status", "amount")+" "+version+" "+valuesOf(m, "decimal"))
	}
	for _, c := range got["totals"].([]any) {
		lines = append(lines, valuesOf(c.(map[string]any), "decimal"))
	}
	return strings.Join(lines, " | ")
}

// use records usage of now, and folds it.
func (w *testService) use(a *account, id string, amount int) {
	w.Helper()
	w.accept(a, event(id, map[string]any{"amount": amount, "timestamp": now()}))
	w.fold()
}

func (w *testService) planOf(key, price string) {
	w.Helper()
	w.do(call{"PUT", "/api/v1/plans/" + key, bootstrap, nil,
		`{"name":"P","entitlements":[{"feature":"api_calls","limit":null,"resetPeriod":"MONTHLY",` + price + `}]}`})
}

// A change of the plan or of a price leaves earlier usage its price, and a subscription its version until it is moved on.
func TestP8_UsageKeepsThePriceOfItsTime(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.putPrice("one", `"currency":"EUR","model":"per_unit","microUnits":1000000`)
	w.putPrice("tenth", `"currency":"EUR","model":"per_unit","microUnits":100000`)
	w.planOf("basic", `"price":"one"`)
	w.planOf("cheap", `"price":"tenth"`)
	a := w.newAccount("A")
	month := periodsOf(a) + "/" + now()[:7]
	w.use(a, "u1", 100)
	w.patchSubscription(a, `{"plan":"cheap"}`)
	w.use(a, "u2", 100)
	w.same("another plan", w.chargedLines(month+"/charges"), "ACTIVE 100 one1 100.00 | ACTIVE 100 tenth1 10.00 | 110.00")
	w.putPrice("tenth", `"currency":"EUR","model":"per_unit","microUnits":7000000`)
	w.use(a, "u3", 1)
	w.same("another version", w.chargedLines(month+"/charges"), "ACTIVE 100 one1 100.00 | ACTIVE 101 tenth1 10.10 | 110.10")
	w.patchSubscription(a, `{"prices":"current"}`)
	w.patchSubscription(a, `{"prices":"current"}`)
	w.use(a, "u4", 1)
	w.same("moved on", w.chargedLines(month+"/charges"), "ACTIVE 100 one1 100.00 | ACTIVE 101 tenth1 10.10 | ACTIVE 1 tenth2 7.00 | 117.10")
	w.accept(a, correction("c1", "u1", 50))
	w.fold()
	w.same("a correction", w.chargedLines(month+"/charges"),
		"ACTIVE 50 one1 50.00 | ACTIVE 101 tenth1 10.10 | ACTIVE 1 tenth2 7.00 | 67.10")
	w.same("the versions", w.adjustmentsAt("/api/v1/prices/tenth/versions", "version", "microUnits"), "[1 100000 2 7000000]")
	page := w.want(200, call{method: "GET", path: "/api/v1/prices/tenth/versions?limit=1", key: bootstrap})
	w.same("the rest", w.adjustmentsAt("/api/v1/prices/tenth/versions?limit=1&cursor="+page["nextCursor"].(string), "version"), "[2]")
	for _, change := range []string{"UPDATE prices SET version = 9", "DELETE FROM prices"} {
		if _, err := w.pool.Exec(t.Context(), "SET ROLE meterplex_worker; "+change); err == nil {
			t.Errorf("%s: done", change)
		}
	}
}

// Usage of a trial, and before the first subscription, is shown and costs nothing, unless the plan charges trials.
func TestP8_TrialsAndUsageBeforeTheStartAreFree(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.putPrice("calls", `"currency":"EUR","model":"flat","microUnits":5000000`)
	w.planOf("basic", `"price":"calls"`)
	w.planOf("charged", `"price":"calls","chargeTrial":true`)
	a := w.newAccount("A")
	tenant := "/api/v1/tenants/" + a.id + "/subscriptions"
	w.patchSubscription(a, `{"status":"CANCELLED"}`)
	b := &account{id: w.newAccountlessTenant("B")}
	b.key, _ = w.key(b.id, nil, "usage:write")
	start := time.Now().UTC().Add(time.Hour).Format(time.RFC3339)
	b.subscription = w.want(201, call{"POST", "/api/v1/tenants/" + b.id + "/subscriptions", bootstrap, nil,
		`{"plan":"basic","status":"TRIALING","startsAt":"` + start + `"}`})["id"].(string)
	w.use(b, "u1", 1)
	w.patchSubscription(b, `{"status":"ACTIVE"}`)
	w.use(b, "u2", 2)
	w.same("a start in the future", w.chargedLines(periodsOf(b)+"/"+now()[:7]+"/charges"), "BEFORE 3 calls1 0.00 | 0.00")
	a.subscription = w.want(201, call{"POST", tenant, bootstrap, nil, `{"plan":"basic","status":"TRIALING"}`})["id"].(string)
	month := periodsOf(a) + "/" + now()[:7]
	w.use(a, "u1", 1)
	w.same("a trial", w.chargedLines(month+"/charges"), "TRIALING 1 calls1 0.00 | 0.00")
	w.patchSubscription(a, `{"plan":"charged"}`)
	w.use(a, "u2", 2)
	w.patchSubscription(a, `{"status":"ACTIVE"}`)
	w.use(a, "u3", 4)
	w.same("a trial that is charged", w.chargedLines(month+"/charges"),
		"TRIALING 1 calls1 0.00 | TRIALING 2 calls1 5.00 | ACTIVE 4 calls1 0.00 | 5.00")
}

// The sums of the charges are those of all lines, also above 1,000.
func TestP8_ChargesOfManyLinesAreSummedUp(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.putPrice("one", `"currency":"EUR","model":"per_unit","microUnits":1000000`)
	w.planOf("basic", `"price":"one"`)
	a := w.newAccount("A")
	w.use(a, "u1", 1)
	for _, sql := range []string{
		`INSERT INTO subscription_history SELECT h.tenant_id, h.from_position + 1000000 + n, h.effective_from, jsonb_set(h.snapshot::jsonb,
			'{id}', to_jsonb(md5(n::text)::uuid))
FROM subscription_history h, generate_series(1, 1100) n`,
		`INSERT INTO usage_aggregates SELECT (jsonb_populate_record(a, jsonb_build_object('subscription_id', md5(n::text)::uuid))).*
			FROM usage_aggregates a, generate_series(1, 1100) n`} {
		_, err := w.pool.Exec(t.Context(), sql)
		w.must(err)
	}
	got := w.want(200, call{method: "GET", path: periodsOf(a) + "/" + now()[:7] + "/charges?limit=2", key: bootstrap})
	w.same("the sum", valuesOf(got["totals"].([]any)[0].(map[string]any), "decimal", "lines"), "1101.00 1101")
}

// Another price over recorded usage shows what each tenant would pay, and stores nothing.
func TestP8_APriceIsEvaluatedOverRecordedUsage(t *testing.T) {
	w := newTestService(t, withDoublingFold)
	w.catalogue()
	w.putPrice("one", `"currency":"EUR","model":"per_unit","microUnits":1000000`)
	w.planOf("basic", `"price":"one"`)
	a, b := w.newAccount("A"), w.newAccount("B")
	w.use(a, "u1", 3)
	position := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?feature=api_calls", key: a.key})["asOfPosition"].(string)
	w.use(a, "u2", 4)
	w.use(b, "u1", 5)
	w.putPrice("one", `"currency":"EUR","model":"per_unit","microUnits":2000000`)
	key, _ := lastMonth()
	w.accept(a, old("u3", 10))
	w.closed(a)
	before := w.stored()
	evaluate := func(body string) (lines []string) {
		t.Helper()
		for cursor := ""; ; {
			got := w.want(200, call{"POST", "/api/v1/prices/evaluate?limit=1" + cursor, bootstrap, nil, "{" + body + "}"})
			rows := got["data"].([]any)
			if totals, ok := got["totals"].(map[string]any); ok && len(rows) > 0 {
				w.same("no cursor with totals", cursor, "")
				rows = append(rows, totals)
			}
			for _, row := range rows {
				m := row.(map[string]any)
				line := fmt.Sprint("all ", m["tenants"])
				if tenant, ok := m["tenantId"].(string); ok {
					line = map[string]string{a.id: "A", b.id: "B"}[tenant] + " " + valuesOf(m, "basis")
				}
				line += " " + valuesOf(m, "amount")
				for _, c := range m["charged"].([]any) {
					line += " " + valuesOf(c.(map[string]any), "decimal")
				}
				line += " " + valuesOf(m["evaluated"].(map[string]any), "decimal", "currency")
				if delta, ok := m["delta"].(map[string]any); ok {
					line += " " + valuesOf(delta, "decimal")
				}
				lines = append(lines, line)
			}
			next, more := got["nextCursor"].(string)
			if !more {
				slices.Sort(lines)
				return lines
			}
			cursor = "&cursor=" + next
		}
	}
	month := `"periodKey":"` + now()[:7] + `",`
	w.same("the current version", evaluate(month+`"priceKey":"one"`),
		"[A net 7 7.00 14.00 EUR 7.00 B net 5 5.00 10.00 EUR 5.00 all 2 12 12.00 24.00 EUR 12.00]")
	w.same("the first version", evaluate(month+`"priceKey":"one","version":1,"tenantId":"`+b.id+`"`),
		"[B net 5 5.00 5.00 EUR 0.00 all 1 5 5.00 5.00 EUR 0.00]")
	w.same("a closed period", evaluate(`"periodKey":"`+key+`","priceKey":"one"`),
		"[A billable 10 10.00 20.00 EUR 10.00 all 1 10 10.00 20.00 EUR 10.00]")
	inline :=
		`"feature":"api_calls","price":{"currency":"§","model":"graduated","tiers":[{"upTo":4,"microUnits":0},{"microUnits":1000000}]}`
	w.same("an inline price", evaluate(month+strings.Replace(inline, "§", "EUR", 1)),
		"[A net 7 7.00 3.00 EUR -4.00 B net 5 5.00 1.00 EUR -4.00 all 2 12 12.00 4.00 EUR -8.00]")
	w.same("another currency", evaluate(month+strings.Replace(inline, "§", "USD", 1)+`,"tenantId":"`+b.id+`"`),
		"[B net 5 5.00 1.00 USD all 1 5 5.00 1.00 USD]")
	w.same("a position", evaluate(month+`"priceKey":"one","tenantId":"`+a.id+`","position":"`+position+`"`),
		"[A position 3 7.00 6.00 EUR -1.00 all 1 3 7.00 6.00 EUR -1.00]")
	w.same("another feature", evaluate(month+`"priceKey":"one","feature":"storage"`), "[]")
	w.same("what is stored", w.stored(), before)
	id := w.rebuilt("usage_aggregates", nil)
	w.same("a rebuild", evaluate(month+`"priceKey":"one","version":1,"rebuildId":"`+id+`"`),
		"[A rebuild 7 7.00 7.00 EUR 0.00 B rebuild 5 5.00 5.00 EUR 0.00 all 2 12 12.00 12.00 EUR 0.00]")
	w.refused(w.do(call{"POST", "/api/v1/prices/evaluate", bootstrap, nil, `{"periodKey":"2026-05","priceKey":"one","rebuildId":"` +
		newID().String() + `"}`}), 404, "rebuild_not_found")
	w.exec(`INSERT INTO usage_aggregates SELECT (jsonb_populate_record(u, jsonb_build_object('tenant_id', gen_random_uuid()))).*
FROM usage_aggregates u, generate_series(1, 999) WHERE u.tenant_id = '` + a.id + `' AND u.generation = 1 AND u.period_key = '` + now()[:7] +
		`'`)
	got := w.want(200, call{"POST", "/api/v1/prices/evaluate?limit=1", bootstrap, nil, "{" + month + `"priceKey":"one"}`})
	w.same("the totals of more than 1,000 tenants", fmt.Sprint(got["totals"]), "<nil>")
}

// Each column of the lines of a period has its own figure: a golden line with zeros could not tell two of them apart.
func TestP8_EachColumnOfAPeriodHasItsFigure(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 100), old("u2", 100), old("u3", 100))
	path := w.closed(a)
	w.accept(a, correction("c1", "u1", 99), correction("c2", "u2", 97), correction("c3", "u3", 93))
	w.fold()
	ids := w.adjustmentsAt(path+"/adjustments", "id")
	w.want(200, call{"POST", "/api/v1/adjustments/" + ids[0] + "/approve", bootstrap, nil, `{"reason":"r"}`})
	w.want(200, call{"POST", "/api/v1/adjustments/" + ids[1] + "/waive", bootstrap, nil, `{"reason":"r"}`})
	members := []string{"frozen", "frozenEventCount", "pending", "approved", "waived", "billable"}
	w.same("the answer", w.lines(path, members...), "[300 3 -7 -1 -3 299]")
	rows := strings.Split(strings.TrimSpace(w.export(path+"/export", "csv")), "\n")
	names, values := strings.Split(rows[0], ","), strings.Split(rows[1], ",")
	var found []string
	for _, member := range members {
		found = append(found, values[slices.Index(names, member)])
	}
	w.same("the CSV", found, "[300 3 -7 -1 -3 299]")
}
