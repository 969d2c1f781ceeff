package http_test

import (
	"fmt"
	"strings"
	"testing"
)

// pricedOf returns a sum of charges, or the charge of a row.
func pricedOf(m map[string]any) string {
	micro := func(name string) string { return valuesOf(m[name].(map[string]any), "microUnits", "decimal") }
	return fmt.Sprint(m["currency"], " ", micro("live"), " ", micro("rebuilt"), " ", micro("delta"))
}

// A difference shows what each customer pays with the new fold, before it is promoted.
func TestADifferenceIsPriced(t *testing.T) {
	w := newTestService(t, withDoublingFold)
	w.catalogue()
	w.priced()
	a, b, c := w.newAccount("A"), w.newAccount("B"), w.newAccount("C")
	w.pricedPlan("calls", "")
	d := w.newAccount("D")
	for of, amount := range map[*account]int{a: 9, b: 3, c: 4, d: 5} {
		w.ingest(of, batch(event("s", map[string]any{"feature": "storage", "amount": amount}), event("c", nil)))
	}
	w.fold()
	path := "/api/v1/rebuilds/" + w.rebuilt("usage_aggregates", nil) + "/diff"
	diff := w.want(200, call{method: "GET", path: path + "?priced=true", key: bootstrap})
	const half = "USD 500000 0.50 1000000 1.00 500000 0.50"
	want, rows := map[string]string{a.id: "USD 1500000 1.50 2500000 2.50 1000000 1.00", b.id: half, c.id: half}, diff["data"].([]any)
	for _, row := range rows {
		m := row.(map[string]any)
		charge, priced := m["charge"].(map[string]any)
		if tenant := m["tenantId"].(string); priced != (want[tenant] != "") || priced &&
			pricedOf(charge)+valuesOf(charge, "price") != want[tenant]+"stored" {
			t.Errorf("%v", m)
		}
	}
	totals := diff["totals"].(map[string]any)
	sum := totals["charges"].([]any)[0].(map[string]any)
	w.same("the sum", pricedOf(sum)+valuesOf(sum, "keys", "tenantId"), "USD 2500000 2.50 4500000 4.50 2000000 2.003 <nil>")
	tenants := totals["chargesByTenant"].([]any)
	w.same("unpriced, and tenants", fmt.Sprint(totals["unpriced"], " ", len(tenants)), "1 3")
	w.same("the greatest change first", tenants[0].(map[string]any)["tenantId"], a.id)
	csv := string(w.do(call{method: "GET", path: path + "?priced=true&format=csv&tenantId=" + a.id, key: bootstrap}).body)
	w.holds("the file", csv, ",price,currency,liveMicroUnits,rebuiltMicroUnits,deltaMicroUnits\n")
	w.holds("the file", csv, ",stored,USD,1500000,2500000,1000000\n")
	if plain := string(w.do(call{method: "GET", path: path, key: bootstrap}).body); strings.Contains(plain, "charge") ||
		strings.Contains(plain, "unpriced") {
		t.Errorf("a difference that is not priced: %s", plain)
	}
	other := w.rebuilt("entitlement_reads", nil)
	w.refused(w.do(call{method: "GET", path: "/api/v1/rebuilds/" + other + "/diff?priced=true", key: bootstrap}), 400, "parameter_invalid")
}
