package cli

import (
	"errors"
	"net/http"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// TenantsBilling sets the customer of a tenant at the billing provider.
type TenantsBilling struct {
	ID       string `arg:"" help:"The tenant's id."`
	Provider string `enum:"stripe" default:"stripe" placeholder:"NAME" help:"The billing provider (default stripe)."`
	Customer string `placeholder:"ID" help:"The provider's id of the customer, e.g. cus_NffrFeUfNV2Hib."`
	Remove   bool   `help:"Push nothing more of the tenant. Pushes that are stored are still sent."`
	Because
}

// Run prints the changed tenant.
func (c *TenantsBilling) Run(a *app) error {
	path := client.Path("tenants", c.ID, "billing")
	switch {
	case c.Remove == (c.Customer != ""):
		return errors.New("give either --customer or --remove")
	case c.Remove:
		return a.change(http.MethodDelete, path, nil)
	}
	return a.change(http.MethodPut, path, map[string]string{"provider": c.Provider, "customer": c.Customer})
}
