package http_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// TestConsole_AStateThatReturnsIsAnotherState: a form is executed once from each display, also if its values, and those of its target, were there before.
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

// TestConsole_TwoWindowsExecuteAnActionOnce: of a target that the first window removed, the second shows the result, not a 404.
func TestConsole_TwoWindowsExecuteAnActionOnce(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.signIn(bootstrap)
	webhook := w.want(201, call{"POST", "/api/v1/tenants/" + a.id + "/webhooks", bootstrap, nil, `{"url":"https://example.com/hook","events":["period.closed"]}`})["id"].(string)
	threshold := w.want(201, call{"POST", "/api/v1/tenants/" + a.id + "/thresholds", bootstrap, nil, `{"percent":80}`})["id"].(string)
	for _, c := range []struct {
		page, action string
		subject      events.Subject
	}{
		{"/webhooks/" + webhook, "/webhooks/" + webhook + "/remove", events.WebhookChanged},
		{"/thresholds", "/thresholds/" + threshold + "/remove", events.ThresholdChanged},
		{"", "/keys/" + a.keyID + "/revoke", events.APIKeyRevoked},
	} {
		at := "/console/tenants/" + a.id
		first := b.open(at + c.page)
		w.asOwner(`UPDATE webhooks SET last_success_at = now()`) // a delivery between the windows
		second := b.open(at + c.page)
		b.twice(first, at+c.action, "of the first window", nil)
		b.twice(second, at+c.action, "of the second", nil)
		w.once(c.subject, 1)
	}
}

// TestConsole_APeriodIsClosedAsDisplayed: if usage came meanwhile, the page shows the new figures, and nothing is closed.
func TestConsole_P8_APeriodIsClosedAsDisplayed(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.priced()
	a := w.newAccount("A")
	w.accept(a, old("one", 100))
	w.fold()
	key, _ := lastMonth()
	b, at := w.signIn(bootstrap), "/console/tenants/"+a.id+"/periods/"+key
	page := b.open(at)
	b.shows(page, `<td class="number">100</td>`)
	w.accept(a, old("late", 23))
	w.fold()
	stale := b.act(page, at+"/close", "as displayed", nil)
	b.problemShown(stale, 409, "state_changed", `<td class="number">123</td>`, `value="as displayed"`)
	w.once(events.PeriodCloseRequested, 0)
	b.shows(b.twice(stale, at+"/close", "as displayed", nil), "CLOSING")
	w.once(events.PeriodCloseRequested, 1)
	b.problemShown(b.act(page, at+"/close", "of an old window", url.Values{"early": {"true"}}), 409, "state_changed", "CLOSING")
	w.fold()
	w.runSagas()
	page = b.open(at)
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"lateUsage":"ADJUST"}`})
	w.accept(a, correction("fix", "one", 90))
	w.fold()
	b.problemShown(b.act(page, at+"/reopen", "as displayed", nil), 409, "state_changed", `<td class="number">-10</td>`, `value="as displayed"`)
	w.once(events.PeriodReopened, 0)
	b.shows(b.twice(b.open(at), at+"/reopen", "as displayed", nil), "OPEN")
	w.once(events.PeriodReopened, 1)
}

// TestConsole_ARollbackTakesBackTheDisplayedPromotion, and no later one.
func TestConsole_ARollbackTakesBackTheDisplayedPromotion(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	step := func(name string) {
		w.want(202, call{"POST", "/api/v1/rebuilds/" + id + "/" + name, bootstrap, nil, `{"reason":"r"}`})
	}
	step("promote")
	b, at := w.signIn(bootstrap), "/console/rebuilds/"+id
	page := b.open(at)
	step("rollback")
	step("promote")
	b.problemShown(b.act(page, at+"/rollback", "as displayed", nil), 409, "state_changed", "PROMOTED", `value="as displayed"`)
	w.once(events.RebuildRolledBack, 0)
	w.same("the figure", w.figure(a), "44")
	b.shows(b.twice(b.open(at), at+"/rollback", "as displayed", nil), "ROLLED_BACK")
	w.once(events.RebuildRolledBack, 1)
	w.same("the figure after the rollback", w.figure(a), "22")
}

// TestConsole_AFormWithAnEmptyFieldIsShownAgain: filled, with the fault at its field, and nothing is done. An answer of the API about a member is at its field, too.
func TestConsole_AFormWithAnEmptyFieldIsShownAgain(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b, before := w.signIn(bootstrap), ""
	tenant := "/console/tenants/" + a.id
	long := strings.Repeat("n", 201)
	before = w.everyRow()
	for _, c := range []struct {
		name, page, action string
		sent               url.Values
		code, field, fault string
		kept               []string
	}{
		{"an empty reason", tenant, tenant + "/suspend", url.Values{"reason": {" "}}, "reason_required", "reason", "Give a reason", nil},
		{"a reason with a control character", tenant, tenant + "/subscriptions/" + a.subscription + "/apply-plan", url.Values{"plan": {"gold"}, "reason": {"a\x1b"}}, "reason_invalid", "reason", "control characters", []string{`value="gold"`}},
		{"an empty name", "/console/new/tenant?key=k", "/console/new/tenant", url.Values{"name": {""}, "class": {"large"}, "externalId": {"crm-1"}, "reason": {"a customer"}}, "member_missing", "name", "Name is empty",
			[]string{`value="crm-1"`, `<option value="large" selected>`, `value="a customer"`}},
		{"a name that is too long", "/console/new/tenant?key=k", "/console/new/tenant", url.Values{"name": {long}, "class": {"small"}, "reason": {"a customer"}}, "name_invalid", "name", "", []string{`value="` + long + `"`}},
		{"an empty plan", "/console/catalogue/plans/basic", "/console/catalogue/plans/basic/change", url.Values{"name": {"Basic"}, "entitlements": {" "}, "reason": {"a limit"}}, "member_missing", "entitlements", "Entitlements is empty",
			[]string{`value="Basic"`, `value="a limit"`}},
		{"no scope", tenant, tenant + "/keys", url.Values{"name": {"server"}, "mode": {"test"}, "reason": {"their server"}}, "member_missing", "scopes", "Scopes is empty", []string{`value="server"`, `<option value="test" selected>`}},
	} {
		got := b.act(b.open(c.page), c.action, c.sent.Get("reason"), c.sent)
		b.problemShown(got, 400, c.code, c.kept...)
		body := string(got.body)
		i := strings.Index(body, `action="`+c.action+`"`)
		form, _, _ := strings.Cut(body[max(i, 0):], "</form>")
		if i < 0 || !strings.Contains(form, `-`+c.field+`-fault"`) || !strings.Contains(form, `class="fault"`) || !strings.Contains(form, c.fault) {
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
