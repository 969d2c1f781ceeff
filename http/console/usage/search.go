package usage

import (
	"net/http"
	"net/url"

	"github.com/meterplex/meterplex/http/console"
)

// Bounds of an operator's search for an eventId without a tenant.
const (
	searchedPages  = 10   // of the list of tenants
	searchedAtOnce = 1000 // tenants on such a page
	maxRecorders   = 50   // tenants with the eventId, after which no further page is searched
)

// findUsage finds usage by the eventId that its producer gave it. Such an id belongs to one tenant.
func findUsage(v *console.Visit, q string) (hits []console.Hit, err error) {
	if v.TenantID() == "" {
		return findRecorders(v, q)
	}
	d, err := v.Look(console.API("usage", "events", q), v.Pick("tenantId"))
	if d == nil || err != nil {
		return nil, err
	}
	return []console.Hit{recorded(q, q, v.Query.Get("tenantId"))}, nil
}

func recorded(eventID, name string, tenant any) console.Hit {
	return console.Hit{Kind: "Usage event", Name: name,
		Address: console.Query(console.Prefix+console.PathOf("usage", "events", eventID), "tenantId", tenant)}
}

// findRecorders finds the tenants that recorded usage with an eventId.
func findRecorders(v *console.Visit, q string) (hits []console.Hit, err error) {
	query := console.Limited(searchedAtOnce, url.Values{"eventId": {q}})
	for range searchedPages {
		page, err := console.Tried(v.Do(console.Request{Method: http.MethodGet, Path: console.API("tenants"), Query: query}))
		if err != nil || page["problem"] != nil {
			return nil, err
		}
		for _, entry := range console.Items(page["data"]) {
			tenant := console.Object(entry)
			hits = append(hits, recorded(q, q+" of "+console.Text(tenant["name"]), tenant["id"]))
		}
		cursor := console.Text(page["nextCursor"])
		if cursor == "" {
			return hits, nil
		}
		if query.Set("cursor", cursor); len(hits) >= maxRecorders {
			break
		}
	}
	return append(hits, console.Hit{Kind: "Usage event",
		Name: "More tenants may have recorded this event id: not all were searched. Name the tenant"}), nil
}
