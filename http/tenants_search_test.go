package http_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"
)

// A search finds tenants by a part of their name or external id or the beginning of their id, in any case of ASCII letters, page by page; %
// and _ stand for themselves.
func TestTenantsAreFoundByAText(t *testing.T) {
	w := newTestService(t)
	ids := map[string]string{}
	for _, c := range []struct{ name, external string }{{"Acme", "CRM-1"}, {"acme two", "crm-2"}, {"100% pure", "x_y"}, {"Müller ÄG", "m"},
		{"a\\'; DROP TABLE tenants", "q"}} {
		ids[c.name] = w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil,
			map[string]any{"name": c.name, "class": "small", "externalIds": []string{c.external}}})["id"].(string)
	}
	w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"Other","class":"small"}`})
	for q, names := range map[string][]string{"ACME": {"Acme", "acme two"}, "crm-": {"Acme", "acme two"}, "Crm-2": {"acme two"},
		"%": {"100% pure"}, "_": {"100% pure"}, "X_Y": {"100% pure"},
		"müller Ä": {"Müller ÄG"}, "'; DROP": {"a\\'; DROP TABLE tenants"}, "\\": {"a\\'; DROP TABLE tenants"}, "nobody": nil, "acme%": nil,
		strings.Repeat("é", 255):     nil,
		strings.ToUpper(ids["Acme"]): {"Acme"}, ids["Acme"][:35]: {"Acme"}, ids["Acme"][1:]: nil} {
		var want []string
		for _, name := range names {
			want = append(want, ids[name])
		}
		slices.Sort(want)
		var got []string
		path := "/api/v1/tenants?limit=1&q="
		for _, entry := range w.entries(bootstrap, path+url.QueryEscape(q)) {
			got = append(got, entry["id"].(string))
		}
		if page := w.want(200, call{method: "GET", path: path + url.QueryEscape(q), key: bootstrap}); page["nextCursor"] != nil {
			cursor := "&cursor=" + url.QueryEscape(page["nextCursor"].(string))
			w.refused(w.do(call{method: "GET", path: path + "other" + cursor, key: bootstrap}), 400, "cursor_invalid")
		}
		w.same(q, got, want)
	}
}

// GET /tenants?eventId= finds the tenants that recorded usage with the id, a page of tenants at a time, also together with q.
func TestTenantsAreFoundByAnEventID(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	first, other, last := w.newAccount("First"), w.newAccount("Other"), w.newAccount("Last")
	w.ingest(first, batch(event("order/17", nil), event("order/1", nil)))
	w.ingest(other, batch(event("order/170", nil)))
	w.ingest(last, batch(event("order/17", nil)))
	for query, want := range map[string][]string{"eventId=order/17": {first.id, last.id}, "eventId=order/1": {first.id},
		"eventId=order/17&q=last": {last.id},
		"eventId=order%2F170":     {other.id}, "eventId=Order/17": nil, "eventId=u/order/17": nil} {
		for _, limit := range []string{"1", "2", "100"} {
			var got []string
			for _, entry := range w.entries(bootstrap, "/api/v1/tenants?"+query+"&limit="+limit) {
				got = append(got, entry["id"].(string))
			}
			w.same(query+" by "+limit, got, want)
		}
	}
	page := w.want(200, call{method: "GET", path: "/api/v1/tenants?limit=1&eventId=order/17", key: bootstrap})
	cursor := "&cursor=" + url.QueryEscape(page["nextCursor"].(string))
	w.refused(w.do(call{method: "GET", path: "/api/v1/tenants?limit=1&eventId=order/1" + cursor, key: bootstrap}), 400, "cursor_invalid")
}
