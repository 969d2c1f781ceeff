package console

import "net/http"

const (
	keysPath   = Prefix + "/keys"
	newKeyPath = Prefix + "/new/operator-key"
)

func keysPage() *page {
	return &page{path: keysPath, title: "Operator keys", menu: "Operator keys", template: "keys.html", needs: "GET /api/v1/operator-keys", who: operator, scopes: admins(),
		params: []string{"cursor"}, limit: 100, cli: []string{"meterplex keys list --operator"},
		actions: []*action{
			{name: "rotate-operator-key", path: keysPath + "/{keyId}/rotate", label: "Rotate", who: operator, scopes: admins(), bare: true, secret: true,
				fields: []field{{name: "overlapSeconds", label: "Overlap in seconds", kind: "number", hint: "How long the old key goes on; 0 ends it at once."}},
				request: func(v *visit, f form) (request, error) {
					seconds, err := f.integer("overlapSeconds")
					return request{Method: http.MethodPost, Path: api("operator-keys", v.param("keyId"), "rotate"), Body: map[string]any{"overlapSeconds": seconds}}, err
				}},
			{name: "revoke-operator-key", path: keysPath + "/{keyId}/revoke", label: "Revoke", warn: "The key is refused from now on, and its sessions end. It cannot be used again.", who: operator, scopes: admins(), bare: true,
				request: func(v *visit, _ form) (request, error) {
					return request{Method: http.MethodDelete, Path: api("operator-keys", v.param("keyId"))}, nil
				}},
		}}
}

// newKeyPage holds the Idempotency-Key of its form in its address. Its secret is shown by the answer of the form alone.
func newKeyPage() *page {
	return &page{path: newKeyPath, title: "New operator key", text: "admin changes tenants, keys and the system; billing decides on figures; audit only reads.", needs: "POST /api/v1/operator-keys", who: operator, scopes: admins(), params: []string{"key"},
		cli: []string{"meterplex keys create --help"},
		actions: []*action{{name: "create-operator-key", path: newKeyPath, label: "Create the key", who: operator, scopes: admins(), bare: true, secret: true,
			fields: []field{
				{name: "name", label: "Name", hint: "The purpose of the key."},
				{name: "scopes", label: "Scopes", kind: "checkboxes", options: []string{"admin", "billing", "audit"}},
				{name: "expiresAt", label: "Expires", optional: true, hint: "An RFC 3339 time, e.g. 2027-01-01T00:00:00Z; empty: never."},
			},
			request: func(_ *visit, f form) (request, error) {
				body := map[string]any{"name": f.get("name"), "scopes": f.all("scopes")}
				if at := f.get("expiresAt"); at != "" {
					body["expiresAt"] = at
				}
				return request{Method: http.MethodPost, Path: api("operator-keys"), Body: body}, nil
			}}}}
}
