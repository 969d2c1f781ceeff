package console

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"
)

// short returns the end of an id: the beginning of a UUIDv7 is a time, which ids of one minute share.
func short(id any) string {
	whole := text(id)
	if end := whole[strings.LastIndexByte(whole, '-')+1:]; end != whole {
		return "…" + end
	}
	return whole
}

// tenantNames are names that were read, by the ids of tenants.
type tenantNames map[string]string

// of returns the name of a tenant, with the end of its id if another tenant has the name, too, and only that end if the name cannot be read.
func (n tenantNames) of(v *visit, id string) string {
	name, known := n[id]
	if !known {
		name = v.tenantName(id)
		n[id] = name
	}
	return name
}

// add adds the member tenantName to events.
func (n tenantNames) add(v *visit, events ...any) {
	for _, e := range events {
		if e, ok := e.(map[string]any); ok && text(e["tenantId"]) != "" {
			e["tenantName"] = n.of(v, text(e["tenantId"]))
		}
	}
}

// TenantName is tenantNames.of for the names of a page.
func (d *view) TenantName(id any) string {
	if d.names == nil {
		d.names = tenantNames{}
	}
	return d.names.of(d.v, text(id))
}

func (v *visit) tenantName(id string) string {
	switch {
	case id == uuid.Nil.String():
		return "platform"
	case v.tenant != nil && v.tenant.ID.String() == id:
		return v.tenant.Name
	}
	tenant, err := v.do(request{Method: http.MethodGet, Path: api("tenants", id)})
	name, _ := tenant["name"].(string)
	if err != nil || name == "" {
		return short(id)
	}
	namesakes, err := v.do(request{Method: http.MethodGet, Path: api("tenants"), Query: url.Values{"q": {name}, "limit": {"100"}}})
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
