package console

import (
	"maps"
	"net/url"
	"slices"
)

const (
	tenantsPath = Prefix + "/tenants"
	tenantPath  = tenantsPath + "/{tenantId}"
)

func tenantsPage() *page {
	return &page{path: tenantsPath, title: "Tenants", menu: "Tenants", template: "tenants.html", needs: "GET /api/v1/tenants",
		params: []string{"externalId", "cursor"}, cli: []string{"meterplex tenants list[ --external-id {externalId}]"}}
}

// newTenantPage holds the Idempotency-Key of its form in its address: back, reload and a second window create one tenant.
func newTenantPage() *page {
	const path = Prefix + "/new/tenant"
	return &page{path: path, title: "New tenant", needs: "POST /api/v1/tenants", params: []string{"key"},
		cli: []string{"meterplex tenants create --help"},
		actions: []*action{{name: "create-tenant", path: path, label: "Create the tenant", does: "POST /api/v1/tenants",
			fields: []field{
				{name: "name"},
				{name: "class", hint: "Groups tenants in metrics."},
				{name: "mode", hint: "A test tenant is not billed. It cannot be changed."},
				{name: "externalIds", kind: "area", hint: "The tenant's ids in other systems, one on each line."},
			},
			next: made(tenantsPath, "id")}}}
}

func tenantPage() *page {
	return &page{path: tenantPath, title: "Tenant", template: "tenant.html", needs: "GET /api/v1/tenants/{tenantId}", params: []string{"keys", "subscriptions"},
		cli:  []string{"meterplex tenants show {tenantId}", "meterplex subscriptions list --tenant {tenantId}", "meterplex keys list --tenant {tenantId}"},
		load: loadTenant, actions: slices.Concat(statusActions(), subscriptionActions(), keyActions(), billingActions(), offboardingActions())}
}

// fewRows bounds the lists of a tenant's page, which has several.
const fewRows = 15

func loadTenant(v *visit) (doc, error) {
	id := v.param("tenantId")
	of := url.Values{"tenantId": {id}}
	tenant, err := v.get(api("tenants", id), nil)
	if err != nil {
		return nil, err
	}
	subscriptions, err := v.subscriptions(id)
	if err != nil {
		return nil, err
	}
	accounts, err := v.accounts(id, limited(fewRows, nil))
	if err != nil {
		return nil, err
	}
	data, err := v.all(map[string]section{
		"keys":    {api("tenants", id, "api-keys"), limited(fewRows, v.at("keys"))},
		"figures": {api("usage", "aggregates"), url.Values{"tenantId": {id}, "limit": {text(fewRows)}}},
		"letters": {api("dead-letters"), url.Values{"tenantId": {id}, "status": {"FAILED"}, "limit": {"10"}}},
	})
	if err != nil {
		return nil, err
	}
	of.Set("last", "10")
	of.Set("follow", "false")
	events, err := v.followed(api("events", "stream"), of)
	if err != nil {
		return nil, err
	}
	if data["offboarding"], err = v.offboarding(id); err != nil {
		return nil, err
	}
	data["events"], data["notes"] = doc{"data": events}, notesOf(tenant)
	data["tenant"], data["subscriptions"], data["accounts"] = tenant, subscriptions, accounts
	data["newKey"], data["newSubscription"] = stateOf(data["keys"].(doc), events), stateOf(subscriptions, events)
	return data, nil
}

// at returns the query of a page of a list, whose cursor is a parameter of its own.
func (v *visit) at(name string) url.Values {
	query := url.Values{}
	if cursor := v.query.Get(name); cursor != "" {
		query.Set("cursor", cursor)
	}
	return query
}

// stateOf is the state of a list for an action that makes an entry. A new entry of a list with several pages is not on this one: then the last events of the
// tenant show it.
func stateOf(list doc, events []any) string {
	state := []any{list["data"]}
	if list["nextCursor"] != nil {
		state = append(state, events)
	}
	written, _ := indented(state) // answers never fail
	return written
}

// Bounds of the notes on a tenant's page. The page to change the tenant shows all of them.
const (
	manyNotes = 16 << 10
	shortNote = 100
)

// notesOf lists the metadata of a tenant, shortened if they are many.
func notesOf(tenant doc) []doc {
	metadata, size := object(tenant["metadata"]), 0
	for name, value := range metadata {
		size += len(name) + len(text(value))
	}
	notes := make([]doc, 0, len(metadata))
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		value := []rune(text(metadata[name]))
		if size > manyNotes && len(value) > shortNote {
			value = append(value[:shortNote], '…')
		}
		notes = append(notes, doc{"name": name, "value": string(value)})
	}
	return notes
}

func statusActions() []*action {
	status := func(name, label, warn, to string) *action {
		return &action{name: name, path: tenantPath + "/" + name, label: label, warn: warn, does: "PATCH /api/v1/tenants/{tenantId}", sets: map[string]any{"status": to}, matches: true}
	}
	return []*action{
		status("suspend", "Suspend the tenant", "Its keys are refused from now on: its usage is not recorded until the tenant is activated again.", "SUSPENDED"),
		status("activate", "Activate the tenant", "", "ACTIVE"),
	}
}

func keyActions() []*action {
	const one = "/api/v1/tenants/{tenantId}/api-keys/{keyId}"
	return []*action{
		{name: "create-key", path: tenantPath + "/keys", label: "Create a key", does: "POST /api/v1/tenants/{tenantId}/api-keys", secret: true,
			fields: []field{{name: "name"}, {name: "scopes", options: []string{"usage:write", "usage:backfill", "usage:read", "entitlements:read", "entitlements:reserve", "events:read", "webhooks:manage"}}}},
		{name: "rotate-key", path: tenantPath + "/keys/{keyId}/rotate", label: "Rotate", does: "POST " + one + "/rotate", secret: true, fields: []field{overlap}},
		{name: "revoke-key", path: tenantPath + "/keys/{keyId}/revoke", label: "Revoke", warn: "The key is refused from now on. It cannot be used again.", does: "DELETE " + one},
	}
}
