package http_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// TestConsole_AStateThatReturnsIsAnotherState: a form is executed once from each display, also if its values, and those of its target, were
// there before.
func TestConsole_AStateThatReturnsIsAnotherState(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b, at := w.signIn(bootstrap), "/console/tenants/"+a.id
	const plan = "/console/catalogue/plans/basic"
	apply := at + "/subscriptions/" + a.subscription + "/apply-plan"
	for n := range 2 {
		b.shows(b.twice(b.open(at), at+"/suspend", "unpaid", nil), "SUSPENDED")
		b.twice(b.open(at), at+"/activate", "paid", nil)
		b.twice(b.open(at), at+"/billing", "by card", url.Values{"provider": {"stripe"}, "customer": {"cus_1"}})
		b.twice(b.open(at), at+"/billing/remove", "by invoice", nil)
		w.once(events.TenantChanged, 4*n+4)
		for i, name := range []string{"Ten", "Twenty"} {
			values := url.Values{"name": {name}, "entitlements": {`[{"feature":"api_calls","limit":10}]`}}
			b.shows(b.twice(b.open(plan), plan+"/change", "as before", values), "<dd>"+name+"</dd>")
			w.once(events.PlanDefined, 2*n+i+1)
		}
		b.twice(b.open(at), apply, "again", url.Values{"plan": {"basic"}})
		w.once(events.SubscriptionChanged, n+1)
	}
}

// TestConsole_AFormWithAnEmptyFieldIsShownAgain: filled, with the fault at its field, and nothing is done. An answer of the API about a
// member is at its field, too.
func TestConsole_AFormWithAnEmptyFieldIsShownAgain(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b, tenant := w.signIn(bootstrap), "/console/tenants/"+a.id
	before := w.everyRow()
	for _, c := range []struct {
		name, page, action string
		sent               url.Values
		code, field, fault string
		kept               []string
	}{
		{"an empty reason", tenant, tenant + "/suspend", url.Values{"reason": {" "}}, "reason_required", "reason", "Give a reason", nil},
		{"an empty name", "/console/new/tenant?key=k", "/console/new/tenant", url.Values{"name": {""}, "class": {"large"},
			"externalIds": {"crm-1"}, "reason": {"a customer"}}, "member_missing", "name", "Name is empty",
			[]string{`>crm-1</textarea>`, `<option value="large" selected>`, `value="a customer"`}},
		{"no scope", tenant, tenant + "/keys", url.Values{"name": {"server"}, "reason": {"their server"}}, "member_missing",
			"scopes", "Scopes is empty", []string{`value="server"`}},
	} {
		got := b.act(b.open(c.page), c.action, c.sent.Get("reason"), c.sent)
		b.problemShown(got, 400, c.code, c.kept...)
		body := string(got.body)
		i := strings.Index(body, `action="`+c.action+`"`)
		form, _, _ := strings.Cut(body[max(i, 0):], "</form>")
		if i < 0 || !strings.Contains(form, `-`+c.field+`-fault"`) || !strings.Contains(form, `class="fault"`) ||
			!strings.Contains(form, c.fault) {
			t.Errorf("%s: the fault is not at its field:\n%s", c.name, form)
		}
		if strings.Contains(string(b.open(c.page).body), `class="fault"`) {
			t.Errorf("%s: a page without an attempt shows a fault", c.name)
		}
		if after := w.everyRow(); after != before {
			t.Fatalf("%s: rows were %s, are %s", c.name, before, after)
		}
	}
	got := b.act(b.open(tenant), tenant+"/suspend", "unpaid", nil)
	b.shows(b.follow(got), "SUSPENDED")
}
