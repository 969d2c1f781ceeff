package http_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

func (w *testService) positionOf(logged string) string {
	w.Helper()
	return w.want(200, call{method: "GET", path: "/api/v1/events/" + logged, key: bootstrap})["position"].(string)
}

// The pages of the log show all events that match, each with its envelope as the API answers it, and its lineage.
func TestConsole_EventsShowTheLog(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccount("B")
	w.ingest(a, batch(event("one", map[string]any{"metadata": map[string]any{"region": canary}}), event("two", nil)))
	w.ingest(other, batch(event("other", nil)))
	w.fold()
	logged := w.firstOf(a)
	const recorded = "?subject=meterplex.usage.event.recorded&tenantId="
	for name, key := range map[string]string{"tenantId=" + a.id: bootstrap, "": a.key} {
		b := w.signIn(key)
		raw := w.do(call{method: "GET", path: "/api/v1/events/" + logged, key: key})
		page := b.open("/console/events?subject=meterplex.usage.event.recorded&" + name)
		b.shows(page, `data-live="/console/events/live?`, `id="live-pause"`, "&#34;one&#34;")
		b.hides(page, "<script>alert", "&#34;other&#34;")
		file, api := b.open(b.link(page, "/console/events/export.ndjson?")), w.do(call{method: "GET",
			path: "/api/v1/events/export" + recorded + a.id, key: key})
		if string(api.body) != string(file.body) || strings.Count(string(api.body), "\n") != 2 {
			t.Errorf("the file %v\n%s\ndiffers from the API's\n%s", file.header, file.body, api.body)
		}
		envelope := b.open("/console/events/" + logged + "?" + name)
		shown := regexp.MustCompile(`(?s)aria-label="Envelope">(.*?)</pre>`).FindSubmatch(envelope.body)
		w.same("the envelope", html.UnescapeString(string(shown[1])), strings.TrimSpace(string(raw.body)))
		lineage := b.open(b.link(envelope, "/console/events/"+w.positionOf(logged)+"/lineage"))
		b.shows(lineage, `<ul class="tree">`, "event validated", "event recorded")
		b.shows(b.open(b.link(envelope, "/console/usage/events/one")), "aggregated")
	}
}

// The search leads to the one result, lists several, and is clear about the rest. A secret is removed from the address.
func TestConsole_SearchFindsWhatTheKeyMayOpen(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("Äcme <b>")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"externalIds":["crm-17"]}`})
	twins := []string{w.newAccount("Twin_1").id, w.newAccount("Twin_2").id}
	w.ingest(a, batch(event("order/17", nil)))
	for range 30 {
		w.newAccountlessTenant("Without usage")
	}
	late := w.newAccount("Late")
	w.ingest(late, batch(event("order/18", nil)))
	w.fold()
	logged := w.firstOf(a)
	envelope := w.want(200, call{method: "GET", path: "/api/v1/events/" + logged, key: bootstrap})
	position, trace := envelope["position"].(string), envelope["correlationId"].(string)
	operator, tenant := w.signIn(bootstrap), w.signIn(a.key)
	for _, c := range []struct {
		b         *browser
		query, to string
	}{
		{operator, "q=" + a.id, "/console/tenants/" + a.id}, {operator, "q=crm-17", "/console/tenants/" + a.id},
		{operator, "q=CME+%3Cb%3E", "/console/tenants/" + a.id}, {operator, "q=+" + position + "+", "/console/events/" + position},
		{operator, "q=" + logged, "/console/events/" + position}, {operator, "q=" + trace, "/console/events?correlationId=" + trace},
		{operator, "q=order/17", "/console/usage/events/order%2F17?tenantId=" + a.id},
		{operator, "q=order/18", "/console/usage/events/order%2F18?tenantId=" + late.id},
		{operator, "q=order/17&tenantId=" + a.id, "/console/usage/events/order%2F17?tenantId=" + a.id},
		{tenant, "q=order/17", "/console/usage/events/order%2F17"}, {tenant, "q=" + position, "/console/events/" + position},
		{operator, "q=x+" + a.key + "+y", "/console/search?secret=removed"},
		{tenant, "tenantId=" + a.key, "/console/search?secret=removed"},
		{&browser{testService: w}, "q=" + strings.ToUpper(a.key[:8]) + a.key[8:], "/console/search?secret=removed"}, // nobody is signed in
	} {
		got := c.b.open("/console/search?" + c.query)
		if got.status != 303 || got.header.Get("Location") != c.to || strings.Contains(string(got.body), a.key[10:]) {
			t.Errorf("%s leads to %d %s instead of %s:\n%s", c.query, got.status, got.header.Get("Location"), c.to, got.body)
		}
	}
	for _, q := range []string{"", "%", "' OR 1=1 --", "<script>alert(1)</script>", newID().String(), "\u202e"} {
		page := operator.open("/console/search?q=" + url.QueryEscape(q))
		operator.shows(page, "Search")
		operator.hides(page, "<script>alert")
	}
	operator.shows(operator.open("/console/search?q=twin_"), "Twin_1", "/console/tenants/"+twins[0], "/console/tenants/"+twins[1])
	tenant.shows(tenant.open("/console/search?q=twin_"), "Nothing was found")
	other := w.signIn(w.newAccount("C").key)
	for _, q := range []string{"order/17", logged, position, a.id} {
		other.shows(other.open("/console/search?q="+url.QueryEscape(q)), "Nothing was found")
	}
}
