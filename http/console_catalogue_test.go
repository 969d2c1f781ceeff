package http_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

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
	w.catalogue()
	price := url.Values{"priceKey": {"tok"}, "name": {"Tokens"}, "currency": {"EUR"}, "model": {"per_unit"}}
	for _, wrong := range []string{"5.0", "1e3", "9007199254740993", `"5"`} {
		price.Set("microUnits", wrong)
		refused := b.act(b.open("/console/new/price"), "/console/new/price", "r", price)
		b.problemShown(refused, 400, "micro_units_invalid", `value="`+html.EscapeString(wrong)+`"`)
	}
	const plans = "/console/catalogue/plans/basic"
	for _, wrong := range []string{`[{"feature":"sso","limit":5.0}]`, `[{"feature":"api_calls","limit":1,"limit":2}]`,
		`[{"feature":"api_calls","limmit":1}]`, `[`, `{} []`} {
		got := b.act(b.open(plans), plans+"/change", "r", url.Values{"name": {"Basic"}, "entitlements": {wrong}})
		if got.status != 400 || areaOf(got, "entitlements") != wrong {
			t.Errorf("%s gives %d, and the form holds %q:\n%s", wrong, got.status, areaOf(got, "entitlements"), got.body)
		}
	}
	plan := url.Values{"key": {"pro"}, "name": {"Pro"}, "entitlements": {`[{"feature":"api_calls","limit":9007199254740991}]`}}
	page := b.twice(b.open("/console/new/plan"), "/console/new/plan", "a new plan", plan)
	if !strings.Contains(areaOf(page, "entitlements"), `"limit": 9007199254740991`) {
		t.Errorf("the form holds %q", areaOf(page, "entitlements"))
	}
	w.want(200, call{"PUT", "/api/v1/plans/pro", bootstrap, nil, `{"name":"Changed meanwhile","entitlements":[]}`})
	stale := b.act(page, "/console/catalogue/plans/pro/change", "a limit",
		url.Values{"name": {"Pro"}, "entitlements": {`[{"feature":"api_calls","limit":5}]`}})
	b.problemShown(stale, 409, "state_changed", "<dd>Changed meanwhile</dd>", `value="a limit"`)
	again := b.act(b.open("/console/new/plan"), "/console/new/plan", "the same once more", plan)
	b.shows(b.follow(again), "<dd>Changed meanwhile</dd>")
	w.once(events.PlanDefined, 1)
	plan.Set("name", "Another")
	b.problemShown(b.act(b.open("/console/new/plan"), "/console/new/plan", "r", plan), 409, "state_changed")
	b.shows(b.open("/console/catalogue?list=plans"), "pro", "The whole catalogue")
	b.refuses("/console/catalogue?list=secrets", 400, "parameter_invalid")
}

// TestConsole_TenantsAreChanged: only the values that were changed are sent, and a subscription on an older snapshot is marked.
func TestConsole_TenantsAreChanged(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b, at := w.signIn(bootstrap), "/console/tenants/"+a.id
	sent := url.Values{"name": {hostile}, "class": {"large"}, "lateUsage": {"REJECT"}, "closeAfterHours": {"24"},
		"externalIds": {"crm-1\r\n=crm-2\r\n"},
		"metadata":    {`{"<b>": "=1", "q": "\"'&"}`}}
	changing := b.open(at + "/change")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"lateUsage":"ADJUST"}`}) // meanwhile: the form does not revert it
	b.shows(b.twice(changing, at+"/change", "a new contract", sent), hostileShown, "24 h after their end", "=crm-2, crm-1",
		"<dt>&lt;b&gt;</dt><dd>=1</dd>", "ADJUST")
	cleared := url.Values{"metadata": {""}, "closeAfterHours": {""}, "class": {"large"}, "lateUsage": {"ADJUST"}, "externalIds": {""}}
	page := b.twice(b.open(at+"/change"), at+"/change", "cleared", cleared)
	b.shows(page, "by request only", "that of the plan")
	b.hides(page, "crm-1", "<dt>&lt;b&gt;</dt>")
	w.once(events.TenantChanged, 2)
	cleared.Set("metadata", `{"a":1}`)
	b.problemShown(b.act(b.open(at+"/change"), at+"/change", "r", cleared), 400, "metadata_invalid", `{&#34;a&#34;:1}`)
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, `{"name":"Basic","entitlements":[{"feature":"api_calls","limit":2000}]}`})
	b.shows(b.open("/console/catalogue/plans/basic"), "Subscriptions on older snapshots", at+"#subscriptions", a.subscription)
	page = b.open(at)
	b.shows(page, "older than the plan")
	b.twice(page, at+"/subscriptions/"+a.subscription+"/apply-plan", "the new terms", url.Values{"plan": {"basic"}})
	b.hides(b.open("/console/catalogue/plans/basic"), a.subscription)
}
