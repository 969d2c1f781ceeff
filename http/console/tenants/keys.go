package tenants

import "github.com/meterplex/meterplex/http/console"

const (
	keysPath   = console.Prefix + "/keys"
	newKeyPath = console.Prefix + "/new/operator-key"
)

func keysPage() *console.Page {
	return &console.Page{Path: keysPath, Title: "Operator keys", Group: "Operations", Menu: "Operator keys", Template: "keys.html",
		New: newKeyPath, Needs: "GET /api/v1/operator-keys",
		Params: []string{"cursor"}, Limit: 100, CLI: []string{"meterplex keys list --operator"},
		Actions: []*console.Action{
			{Name: "rotate-operator-key", Path: keysPath + "/{keyId}/rotate", Label: "Rotate",
				Does: "POST /api/v1/operator-keys/{keyId}/rotate", Secret: true, Fields: []console.Field{overlap}},
			{Name: "revoke-operator-key", Path: keysPath + "/{keyId}/revoke", Label: "Revoke", Does: "DELETE /api/v1/operator-keys/{keyId}",
				Warn: "The key is refused from now on, and its sessions end. It cannot be used again."},
		}}
}

// overlap is the time for which a key goes on after its rotation.
var overlap = console.Field{Name: "overlapSeconds", Label: "Overlap in seconds", Hint: "How long the old key goes on; 0 ends it at once."}

// newKeyPage holds the Idempotency-Key of its form in its address. Its secret is shown by the answer of the form alone.
func newKeyPage() *console.Page {
	return &console.Page{Path: newKeyPath, Title: "New operator key",
		Text:  "admin changes tenants, keys and the system; billing decides on figures; audit only reads.",
		Needs: "POST /api/v1/operator-keys", Params: []string{"key"},
		CLI: []string{"meterplex keys create --help"},
		Actions: []*console.Action{{Name: "create-operator-key", Path: newKeyPath, Label: "Create the key",
			Does: "POST /api/v1/operator-keys", Secret: true,
			Fields: []console.Field{
				{Name: "name", Hint: "The purpose of the key."},
				{Name: "scopes"},
				{Name: "expiresAt", Label: "Expires", Hint: "An RFC 3339 time, e.g. 2027-01-01T00:00:00Z; empty: never."},
			}}}}
}

// portalActions makes a link whose page the tenant's people open without signing in.
func portalActions() []*console.Action {
	return []*console.Action{{Name: "create-portal-link", Path: TenantPath + "/portal-link", Label: "Create a portal link",
		Does: "POST /api/v1/tenants/{tenantId}/portal-links", Secret: true,
		Fields: []console.Field{{Name: "expiresInSeconds", Label: "Ends after seconds"}}}}
}
