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
	id := w.rebuilt("usage_aggregates", nil)
	path := "/api/v1/rebuilds/" + id + "/diff"
	diff := w.want(200, call{method: "GET", path: path + "?priced=true", key: bootstrap})
	want := map[string]string{a.id: "USD 1500000 1.50 2500000 2.50 1000000 1.00", b.id: "USD 500000 0.50 1000000 1.00 500000 0.50", c.id: "USD 500000 0.50 1000000 1.00 500000 0.50"}
	for _, row := range diff["data"].([]any) {
		m := row.(map[string]any)
		charge, priced := m["charge"].(map[string]any)
		if tenant := m["tenantId"].(string); priced != (want[tenant] != "") || priced && (pricedOf(charge) != want[tenant] || charge["price"] != "stored") {
			t.Errorf("%v", m)
		}
	}
	totals := diff["totals"].(map[string]any)
	w.same("the sums", len(totals["charges"].([]any)), 1)
	sum := totals["charges"].([]any)[0].(map[string]any)
	w.same("the sum", pricedOf(sum)+valuesOf(sum, "keys", "tenantId"), "USD 2500000 2.50 4500000 4.50 2000000 2.003 <nil>")
	w.same("unpriced", totals["unpriced"], 1)
	var tenants []string
	for _, row := range totals["chargesByTenant"].([]any) {
		m := row.(map[string]any)
		w.same("a tenant's sum", pricedOf(m), want[m["tenantId"].(string)])
		tenants = append(tenants, m["tenantId"].(string))
	}
	w.same("the greatest change first", fmt.Sprint(len(tenants), " ", tenants[0]), "3 "+a.id)
	csv := string(w.do(call{method: "GET", path: path + "?priced=true&format=csv&tenantId=" + a.id, key: bootstrap}).body)
	if !strings.HasPrefix(csv, "tenantId,") || !strings.Contains(csv, ",price,currency,liveMicroUnits,rebuiltMicroUnits,deltaMicroUnits\n") || !strings.HasSuffix(csv, ",stored,USD,1500000,2500000,1000000\n") {
		t.Error(csv)
	}
	if plain := w.do(call{method: "GET", path: path, key: bootstrap}).body; strings.Contains(string(plain), "charge") || strings.Contains(string(plain), "unpriced") {
		t.Errorf("a difference that is not priced: %s", plain)
	}
	other := w.rebuilt("entitlement_reads", nil)
	w.refused(w.do(call{method: "GET", path: "/api/v1/rebuilds/" + other + "/diff?priced=true", key: bootstrap}), 400, "parameter_invalid")
}
