package http_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// firstMatch returns the first match of a pattern in a page.
func firstMatch(pattern string, page []byte) string {
	return string(regexp.MustCompile(pattern).Find(page))
}

// areaOf returns the text of a text area of a form.
func areaOf(page answer, name string) string {
	found := regexp.MustCompile(`(?s)<textarea[^>]* name="` + name + `"[^>]*>(.*?)</textarea>`).FindSubmatch(page.body)
	if found == nil {
		return ""
	}
	return html.UnescapeString(string(found[1]))
}

// TestConsole_CatalogueIsPut: what a form holds is what the API gets, digit for digit, and what the page displayed is what is replaced.
func TestConsole_CatalogueIsPut(t *testing.T) {
	w := newTestService(t)
	b := w.signIn(bootstrap)
	b.shows(b.open("/console/catalogue"), "No feature exists", "No plan exists", "No price exists")
	feature := url.Values{"lookupKey": {"tokens"}, "name": {hostile}, "type": {"QUOTA"}, "unit": {"token"}, "groupBy": {"region, model"}}
	page := b.twice(b.open("/console/new/feature"), "/console/new/feature", "a new product", feature)
	b.shows(page, hostileShown, "region, model", "Done: Define the feature.")
	w.once(events.FeatureDefined, 1)
	change := url.Values{"name": {"Tokens"}, "type": {"QUOTA"}, "unit": {"token"}, "groupBy": {"region"}, "billingEvent": {"tokens_meter"}}
	b.shows(b.twice(page, "/console/catalogue/features/tokens/change", "a better name", change), "tokens_meter")
	w.once(events.FeatureDefined, 2)

	price := url.Values{"priceKey": {"tok"}, "name": {"Tokens"}, "currency": {"EUR"}, "model": {"per_unit"}, "microUnits": {"9007199254740991"}}
	for _, wrong := range []string{"5.0", "1e3", "9007199254740993", `"5"`} {
		price.Set("microUnits", wrong)
		b.problemShown(b.act(b.open("/console/new/price"), "/console/new/price", "r", price), 400, "micro_units_invalid", `value="`+html.EscapeString(wrong)+`"`)
	}
	price.Set("microUnits", "9007199254740991")
	page = b.twice(b.open("/console/new/price"), "/console/new/price", "a new price", price)
	b.shows(page, "9007199254740991")
	w.once(events.PriceDefined, 1)
	tiers := url.Values{"name": {"Tokens"}, "currency": {"EUR"}, "model": {"graduated"}, "microUnits": {""}, "tiers": {`[{"upTo":9007199254740990,"microUnits":3},{"upTo":null,"microUnits":2,"flatMicroUnits":7}]`}}
	page = b.twice(page, "/console/catalogue/prices/tok/change", "tiers", tiers)
	b.shows(page, `<td class="number">9007199254740990</td>`, "no last unit")
	w.once(events.PriceDefined, 2)

	plan := url.Values{"key": {"pro"}, "name": {"Pro"}}
	for _, wrong := range []string{`[{"feature":"tokens","limit":5.0}]`, `[{"feature":"tokens","limit":1e3}]`, `[{"feature":"tokens","limit":1,"limit":2}]`, `[{"feature":"tokens","limmit":1}]`, `[`, `{} []`} {
		plan.Set("entitlements", wrong)
		got := b.act(b.open("/console/new/plan"), "/console/new/plan", "r", plan)
		if got.status != 400 || areaOf(got, "entitlements") != wrong {
			t.Errorf("%s gives %d, and the form holds %q:\n%s", wrong, got.status, areaOf(got, "entitlements"), got.body)
		}
	}
	plan.Set("entitlements", `[{"feature":"tokens","limit":9007199254740991,"limitBehavior":"HARD","resetPeriod":"MONTHLY","price":"tok"}]`)
	page = b.twice(b.open("/console/new/plan"), "/console/new/plan", "a new plan", plan)
	b.shows(page, `<td class="number">9007199254740991</td>`, "/console/catalogue/prices/tok")
	w.once(events.PlanDefined, 1)
	if !strings.Contains(areaOf(page, "entitlements"), `"limit": 9007199254740991`) {
		t.Errorf("the form holds %q", areaOf(page, "entitlements"))
	}
	w.want(200, call{"PUT", "/api/v1/plans/pro", bootstrap, nil, `{"name":"Changed meanwhile","entitlements":[]}`})
	stale := b.act(page, "/console/catalogue/plans/pro/change", "a limit", url.Values{"name": {"Pro"}, "entitlements": {`[{"feature":"tokens","limit":5,"resetPeriod":"MONTHLY"}]`}})
	b.problemShown(stale, 409, "state_changed", "<dd>Changed meanwhile</dd>", `value="a limit"`)
	w.same("plans by the console", w.viaConsole(events.PlanDefined), 1)
	again := b.act(b.open("/console/new/plan"), "/console/new/plan", "the same once more", plan)
	b.shows(b.follow(again), "<dd>Changed meanwhile</dd>")
	w.once(events.PlanDefined, 1)
	plan.Set("name", "Another")
	exists := b.act(b.open("/console/new/plan"), "/console/new/plan", "r", plan)
	b.problemShown(exists, 409, "state_changed")
	b.shows(b.open("/console/catalogue"), "tokens", "pro", "tok")
	b.shows(b.open("/console/catalogue?list=plans"), "pro", "The whole catalogue")
	if got := b.open("/console/catalogue?list=secrets"); got.status != 400 {
		t.Errorf("an unknown list gives %d", got.status)
	}
}

// TestConsole_TenantsAreChanged: only the values that were changed are sent, and a subscription on an older snapshot is marked.
func TestConsole_TenantsAreChanged(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	b, at := w.signIn(bootstrap), "/console/tenants/"+a.id
	page := b.open(at)
	b.shows(page, "that of the plan", "by request only", "/console/tenants/"+a.id+"/periods", "is not being offboarded")
	metadata := `{"<b>": "=1", "q": "\"'&"}`
	sent := url.Values{"name": {hostile}, "class": {"large"}, "lateUsage": {"REJECT"}, "closeAfterHours": {"24"}, "externalIds": {"crm-1\r\n=crm-2\r\n"}, "metadata": {metadata}}
	changing := b.open(at + "/change")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"lateUsage":"ADJUST"}`}) // meanwhile: the form does not revert it
	page = b.twice(changing, at+"/change", "a new contract", sent)
	b.shows(page, hostileShown, "24 h after their end", "Done: Change the tenant.", "=crm-2, crm-1", "<dt>&lt;b&gt;</dt><dd>=1</dd>", "ADJUST")
	w.once(events.TenantChanged, 1)
	b.problemShown(b.act(b.open(at+"/change"), at+"/change", "r", url.Values{"metadata": {`{"a":1}`}, "class": {"large"}, "lateUsage": {"ADJUST"}, "externalIds": {"crm-1\n=crm-2"}}), 400, "metadata_invalid", `{&#34;a&#34;:1}`)
	cleared := b.twice(b.open(at+"/change"), at+"/change", "cleared", url.Values{"metadata": {""}, "closeAfterHours": {""}, "class": {"large"}, "lateUsage": {"ADJUST"}, "externalIds": {""}})
	b.shows(cleared, "by request only")
	b.hides(cleared, "crm-1", "<dt>&lt;b&gt;</dt>")
	w.once(events.TenantChanged, 2)

	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, `{"name":"Basic","entitlements":[{"feature":"api_calls","limit":2000,"resetPeriod":"MONTHLY"}]}`})
	w.newAccount("With the present one")
	older := w.want(200, call{method: "GET", path: "/api/v1/plans/basic/subscriptions?snapshot=older", key: bootstrap})["data"].([]any)
	all := w.want(200, call{method: "GET", path: "/api/v1/plans/basic/subscriptions", key: bootstrap})["data"].([]any)
	if len(all) != 2 || len(older) != 1 || older[0].(map[string]any)["id"] != a.subscription {
		t.Errorf("%d subscriptions, on older snapshots %v", len(all), older)
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/plans/none/subscriptions", key: bootstrap}), 404, "plan_not_found")
	b.shows(b.open("/console/catalogue/plans/basic"), "Subscriptions on older snapshots", at+"#subscriptions", a.subscription)
	page = b.open(at)
	b.shows(page, "older than the plan")
	apply := at + "/subscriptions/" + a.subscription
	page = b.twice(page, apply+"/apply-plan", "the new terms", url.Values{"plan": {"basic"}})
	b.shows(page, "that of the plan", "2000")
	b.hides(b.open("/console/catalogue/plans/basic"), a.subscription)
	w.once(events.SubscriptionChanged, 1)
	b.shows(b.twice(page, apply+"/set-status", "left", url.Values{"status": {"CANCELLED"}}), "CANCELLED")
	w.once(events.SubscriptionChanged, 2)

	page = b.twice(b.open(at), at+"/billing", "they pay by card", url.Values{"provider": {"stripe"}, "customer": {"cus_1<b>"}})
	b.shows(page, "stripe: cus_1&lt;b&gt;")
	w.once(events.TenantChanged, 3)
	b.shows(b.twice(page, at+"/billing/remove", "by invoice", nil), "Done: Remove the billing customer.")
	w.once(events.TenantChanged, 4)

	page = b.twice(b.open(at), at+"/offboard", "the contract ended "+hostile, nil)
	b.shows(page, "RUNNING", hostileShown, "/console/sagas/")
	w.once(events.OffboardingStepped, 1)
	b.shows(b.twice(page, at+"/offboard/cancel", "it goes on", nil), "CANCELLING", "it goes on")
	w.same("offboardings", w.number(`SELECT count(*) FROM offboardings WHERE tenant_id = $1`, a.id), 1)
}
