package tenants

import (
	"net/url"

	"github.com/meterplex/meterplex/http/console"
)

// findTenants finds them by a part of their name or external id, or the beginning of their id.
func findTenants(v *console.Visit, q string) ([]console.Hit, error) {
	d, err := v.Look(console.API("tenants"), url.Values{"q": {q}, "limit": {"50"}})
	if err != nil {
		return nil, err
	}
	var hits []console.Hit
	for _, t := range console.Items(d["data"]) {
		tenant, _ := t.(map[string]any)
		hits = append(hits, console.Hit{Kind: "Tenant", Name: console.Text(tenant["name"]),
			Address: console.Prefix + console.PathOf("tenants", console.Text(tenant["id"]))})
	}
	if console.Text(d["nextCursor"]) != "" {
		hits = append(hits, console.Hit{Kind: "Tenant",
			Name: "More tenants match. Search for a longer part of the name, the id or an external id"})
	}
	return hits, nil
}
