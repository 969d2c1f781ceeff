package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// KeysCmd groups the keys commands.
type KeysCmd struct {
	Create KeysCreate `cmd:"" help:"Create a key; its secret is shown this once."`
	List   KeysList   `cmd:"" help:"List keys, without secrets."`
	Rotate KeysRotate `cmd:"" help:"Replace a key; both work for the overlap."`
	Revoke KeysRevoke `cmd:"" help:"Revoke a key, everywhere within a second."`
}

// KeyOwner holds the flags that select the owner of the keys.
type KeyOwner struct {
	Tenant   string `xor:"owner" required:"" placeholder:"ID" aliases:"tenant-id" help:"The tenant that the keys belong to."`
	Operator bool   `xor:"owner" required:"" help:"Operator keys, which belong to no tenant."`
}

func (o *KeyOwner) path(more ...string) string {
	if o.Operator {
		return "/operator-keys" + client.Path(more...)
	}
	return client.Path("tenants", o.Tenant, "api-keys") + client.Path(more...)
}

// KeysCreate creates a key.
type KeysCreate struct {
	KeyOwner
	Name      string     `required:"" placeholder:"TEXT" help:"The key's purpose."`
	Scopes    []string   `name:"scope" required:"" placeholder:"SCOPE" help:"Of a tenant key: ${tenant_scopes}. Of an operator key: ${operator_scopes}."`
	Mode      string     `enum:",live,test" default:"" placeholder:"MODE" help:"live or test: that of the tenant, and by default it. Operator keys have none."`
	ExpiresAt *time.Time `placeholder:"TIME" help:"When it ends by itself, RFC 3339."`
	Once
	Because
}

// Run prints the key with its secret.
func (c *KeysCreate) Run(a *app) error {
	body := struct {
		Name      string     `json:"name"`
		Scopes    []string   `json:"scopes"`
		Mode      string     `json:"mode,omitempty"`
		ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	}{c.Name, c.Scopes, c.Mode, c.ExpiresAt}
	if c.Operator {
		body.Mode = ""
	}
	return c.createKey(a, c.path(), c.IdempotencyKey, body)
}

// createKey prints a new key, with a note about its secret.
func (o *KeyOwner) createKey(a *app, path, once string, body any) error {
	return a.createSecret(path, once, body, "it is stored nowhere and is not shown again", func(id string) string {
		owner := "--operator"
		if !o.Operator {
			owner = "--tenant " + o.Tenant
		}
		return fmt.Sprintf("meterplex keys rotate %s %s --overlap 0s", id, owner)
	})
}

// createSecret prints an answer with a secret, and the note on it. If the answer has none, because it is a repeat, another returns the
// command that makes another secret. Under a key of this call alone that is a failure: only the lost answer had the secret.
func (a *app) createSecret(path, once string, body any, note string, another func(id string) string) error {
	raw, err := a.posted(path, once, body)
	if err != nil {
		return err
	}
	var made struct{ ID, Secret string }
	if err := json.Unmarshal(raw, &made); err != nil {
		return fmt.Errorf("read the answer with the secret: %w", err)
	}
	remedy := output.Printable(another(made.ID))
	switch {
	case made.Secret != "":
		a.report("Keep the secret now: %s.", note)
	case once == "":
		return fmt.Errorf("the request took effect for %s, but the answer with the secret was lost, and the secret cannot be shown again\n  hint: make another: %s", output.Printable(made.ID), remedy)
	default:
		a.report("This request was sent before: the secret was in the first answer, and cannot be shown again. If it is lost, make another: %s", remedy)
	}
	return a.object(raw)
}

// KeysList lists keys.
type KeysList struct {
	KeyOwner
	Limit
}

// Run prints the rows.
func (c *KeysList) Run(a *app) error {
	return a.list(c.path(), nil, c.Limit.Limit, "id", "name", "prefix", "scopes", "createdAt", "expiresAt", "revokedAt")
}

// KeysRotate replaces a key.
type KeysRotate struct {
	KeyOwner
	ID      string        `arg:"" help:"The key's id."`
	Overlap time.Duration `default:"24h" placeholder:"DURATION" help:"How long the old key goes on working, in whole seconds (default 24h)."`
	Once
	Because
}

// Run prints the new key with its secret.
func (c *KeysRotate) Run(a *app) error {
	if c.Overlap < 0 || c.Overlap%time.Second != 0 {
		return errors.New("--overlap must be whole seconds, 0 or more")
	}
	return c.createKey(a, c.path(c.ID, "rotate"), c.IdempotencyKey, map[string]int64{"overlapSeconds": int64(c.Overlap / time.Second)})
}

// KeysRevoke revokes a key.
type KeysRevoke struct {
	KeyOwner
	ID string `arg:"" help:"The key's id."`
	Because
}

// Run prints a confirmation: the response has no body.
func (c *KeysRevoke) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	if _, err := cl.Do(a.ctx, client.Request{Method: http.MethodDelete, Path: c.path(c.ID)}); err != nil {
		return err
	}
	a.report("Revoked %s.", c.ID)
	return nil
}
