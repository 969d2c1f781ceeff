package console

import (
	"net/http"
	"net/url"
	"strings"
)

// short returns the end of an id: the beginning of a UUIDv7 is a time, which ids of one minute share.
func short(id any) string {
	whole := text(id)
	if end := whole[strings.LastIndexByte(whole, '-')+1:]; end != whole {
		return "…" + end
	}
	return whole
}

// TenantName returns the name of a tenant, with the end of its id if another tenant has the name, too, and only that end if the name cannot be read.
func (d *view) TenantName(id any) string {
	whole := text(id)
	if name, known := d.names[whole]; known {
		return name
	}
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[whole] = d.tenantName(whole)
	return d.names[whole]
}

func (d *view) tenantName(id string) string {
	tenant, err := d.v.do(request{Method: http.MethodGet, Path: api("tenants", id)})
	name, _ := tenant["name"].(string)
	if err != nil || name == "" {
		return short(id)
	}
	namesakes, err := d.v.do(request{Method: http.MethodGet, Path: api("tenants"), Query: url.Values{"q": {name}, "limit": {"100"}}})
	if err != nil || namesakes["nextCursor"] != nil {
		return name + " " + short(id)
	}
	for _, of := range items(namesakes["data"]) {
		if other, ok := of.(map[string]any); ok && text(other["name"]) == name && text(other["id"]) != id {
			return name + " " + short(id)
		}
	}
	return name
}
