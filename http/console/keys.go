package console

const (
	keysPath   = Prefix + "/keys"
	newKeyPath = Prefix + "/new/operator-key"
)

func keysPage() *page {
	return &page{path: keysPath, title: "Operator keys", menu: "Operator keys", template: "keys.html", needs: "GET /api/v1/operator-keys",
		params: []string{"cursor"}, limit: 100, cli: []string{"meterplex keys list --operator"},
		actions: []*action{
			{name: "rotate-operator-key", path: keysPath + "/{keyId}/rotate", label: "Rotate", does: "POST /api/v1/operator-keys/{keyId}/rotate", secret: true, fields: []field{overlap}},
			{name: "revoke-operator-key", path: keysPath + "/{keyId}/revoke", label: "Revoke", does: "DELETE /api/v1/operator-keys/{keyId}",
				warn: "The key is refused from now on, and its sessions end. It cannot be used again."},
		}}
}

// overlap is the time for which a key goes on after its rotation.
var overlap = field{name: "overlapSeconds", label: "Overlap in seconds", hint: "How long the old key goes on; 0 ends it at once."}

// newKeyPage holds the Idempotency-Key of its form in its address. Its secret is shown by the answer of the form alone.
func newKeyPage() *page {
	return &page{path: newKeyPath, title: "New operator key", text: "admin changes tenants, keys and the system; billing decides on figures; audit only reads.", needs: "POST /api/v1/operator-keys", params: []string{"key"},
		cli: []string{"meterplex keys create --help"},
		actions: []*action{{name: "create-operator-key", path: newKeyPath, label: "Create the key", does: "POST /api/v1/operator-keys", secret: true,
			fields: []field{
				{name: "name", hint: "The purpose of the key."},
				{name: "scopes", options: []string{"admin", "billing", "audit"}},
				{name: "expiresAt", label: "Expires", hint: "An RFC 3339 time, e.g. 2027-01-01T00:00:00Z; empty: never."},
			}}}}
}
