// Package tenants has the pages of tenants, and of their keys, subscriptions, webhooks and thresholds.
package tenants

import (
	"maps"
	"net/url"
	"slices"

	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/console/entitlements"
)

const (
	tenantsPath = console.Prefix + "/tenants"
	TenantPath  = tenantsPath + "/{tenantId}"

	newTenantPath = console.Prefix + "/new/tenant"
	changePath    = TenantPath + "/change"
)

// Pages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		tenantsPage(),
		newTenantPage(),
		tenantPage(),
		tenantChangePage(),
		keysPage(),
		newKeyPage(),
		webhooksPage(),
		newWebhookPage(),
		webhookPage(),
		rotatePage(),
		resendPage(),
		thresholdsPage(),
		newThresholdPage(),
	}
}

func tenantsPage() *console.Page {
	return &console.Page{Path: tenantsPath, Title: "Tenants", Group: "Customers", Menu: "Tenants", Template: "tenants.html",
		New: newTenantPath, Needs: "GET /api/v1/tenants",
		Params: []string{"q", "externalId", "cursor"}, CLI: []string{"meterplex tenants list[ --q {q}][ --external-id {externalId}]"}}
}

// newTenantPage holds the Idempotency-Key of its form in its address: back, reload and a second window create one tenant.
func newTenantPage() *console.Page {
	const path = newTenantPath
	return &console.Page{Path: path, Title: "New tenant", Needs: "POST /api/v1/tenants", Params: []string{"key"},
		CLI: []string{"meterplex tenants create --help"},
		Actions: []*console.Action{{Name: "create-tenant", Path: path, Label: "Create the tenant", Does: "POST /api/v1/tenants",
			Fields: []console.Field{
				{Name: "name"},
				{Name: "class", Hint: "Groups tenants in metrics."},
				{Name: "mode", Hint: "A test tenant is not billed. It cannot be changed."},
				{Name: "externalIds", Kind: "area", Hint: "The tenant's ids in other systems, one on each line."},
			},
			Next: console.Made(tenantsPath, "id")}}}
}

func tenantPage() *console.Page {
	return &console.Page{Path: TenantPath, Title: "Tenant", New: changePath, Template: "tenant.html", Find: findTenants,
		Needs: "GET /api/v1/tenants/{tenantId}", Params: []string{"keys", "subscriptions"},
		CLI: []string{"meterplex tenants show {tenantId}", "meterplex subscriptions list --tenant {tenantId}",
			"meterplex keys list --tenant {tenantId}"},
		Load: loadTenant, Actions: slices.Concat(statusActions(), subscriptionActions(), keyActions(), portalActions(), billingActions(),
			offboardingActions())}
}

// fewRows bounds the lists of a tenant's page, which has several.
const fewRows = 15

func loadTenant(v *console.Visit) (console.Doc, error) {
	id := v.Param("tenantId")
	of := url.Values{"tenantId": {id}}
	tenant, err := v.Get(console.API("tenants", id), nil)
	if err != nil {
		return nil, err
	}
	subscriptions, err := subscriptions(v, id)
	if err != nil {
		return nil, err
	}
	accounts, err := entitlements.Accounts(v, id, console.Limited(fewRows, nil))
	if err != nil {
		return nil, err
	}
	data, err := v.All(map[string]console.Section{
		"keys": {Path: console.API("tenants", id, "api-keys"),
			Query: console.Limited(fewRows, console.With(url.Values{}, "cursor", v.Query.Get("keys")))},
		"figures": {Path: console.API("usage", "aggregates"), Query: url.Values{"tenantId": {id}, "limit": {console.Text(fewRows)}}},
		"letters": {Path: console.API("dead-letters"), Query: url.Values{"tenantId": {id}, "status": {"FAILED"}, "limit": {"10"}}},
	})
	if err != nil {
		return nil, err
	}
	of.Set("last", "10")
	of.Set("follow", "false")
	events, err := v.Followed(console.API("events", "stream"), of)
	if err != nil {
		return nil, err
	}
	if data["offboarding"], err = v.Perhaps(console.API("tenants", id, "offboard"), nil); err != nil {
		return nil, err
	}
	slices.Reverse(events)
	data["events"], data["notes"] = console.Doc{"data": events}, notesOf(tenant)
	data["tenant"], data["subscriptions"], data["accounts"] = tenant, subscriptions, accounts
	data["pageTitle"] = tenant["name"]
	data["newKey"], data["newSubscription"] = stateOf(data["keys"].(console.Doc), events), stateOf(subscriptions, events)
	return data, nil
}

// stateOf is the state of a list for an action that makes an entry. A new entry of a list with several pages is not on this one: then the
// last events of the tenant show it.
func stateOf(list console.Doc, events []any) string {
	state := []any{list["data"]}
	if list["nextCursor"] != nil {
		state = append(state, events)
	}
	written, _ := console.Indented(state) // answers never fail
	return written
}

// Bounds of the notes on a tenant's page. The page to change the tenant shows all of them.
const (
	manyNotes = 16 << 10
	shortNote = 100
)

// notesOf lists the metadata of a tenant, shortened if they are many.
func notesOf(tenant console.Doc) []console.Doc {
	metadata, size := console.Object(tenant["metadata"]), 0
	for name, value := range metadata {
		size += len(name) + len(console.Text(value))
	}
	notes := make([]console.Doc, 0, len(metadata))
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		value := []rune(console.Text(metadata[name]))
		if size > manyNotes && len(value) > shortNote {
			value = append(value[:shortNote], '…')
		}
		notes = append(notes, console.Doc{"name": name, "value": string(value)})
	}
	return notes
}

func statusActions() []*console.Action {
	status := func(name, label, warn, to string) *console.Action {
		return &console.Action{Name: name, Path: TenantPath + "/" + name, Label: label, Warn: warn,
			Does: "PATCH /api/v1/tenants/{tenantId}", Sets: map[string]any{"status": to}, Matches: true}
	}
	return []*console.Action{
		status("suspend", "Suspend the tenant",
			"Its keys are refused from now on: its usage is not recorded until the tenant is activated again.", "SUSPENDED"),
		status("activate", "Activate the tenant", "", "ACTIVE"),
	}
}

func keyActions() []*console.Action {
	const one = "/api/v1/tenants/{tenantId}/api-keys/{keyId}"
	return []*console.Action{
		{Name: "create-key", Path: TenantPath + "/keys", Label: "Create a key", Does: "POST /api/v1/tenants/{tenantId}/api-keys",
			Secret: true,
			Fields: []console.Field{{Name: "name"}, {Name: "scopes"}}},
		{Name: "rotate-key", Path: TenantPath + "/keys/{keyId}/rotate", Label: "Rotate", Does: "POST " + one + "/rotate", Secret: true,
			Fields: []console.Field{overlap}},
		{Name: "revoke-key", Path: TenantPath + "/keys/{keyId}/revoke", Label: "Revoke",
			Warn: "The key is refused from now on. It cannot be used again.", Does: "DELETE " + one},
	}
}
