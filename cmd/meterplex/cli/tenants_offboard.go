package cli

import "github.com/meterplex/meterplex/cmd/meterplex/client"

// TenantsOffboard groups the commands that end a tenant.
type TenantsOffboard struct {
	Start  TenantsOffboardStart  `cmd:"" help:"End a tenant: suspend it, close its periods, push what is due, archive it."`
	Show   TenantsOffboardShow   `cmd:"" help:"Show the offboarding of a tenant, and the manifest of what is kept."`
	Cancel TenantsOffboardCancel `cmd:"" help:"Cancel it, until the tenant is archived."`
}

// TenantsOffboardStart begins an offboarding.
type TenantsOffboardStart struct {
	ID     string `arg:"" help:"The tenant's id."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Once
}

// Help returns the long help text.
func (TenantsOffboardStart) Help() string {
	return `The tenant's keys are refused within a second. It can be cancelled until the tenant is archived; an archived tenant stays archived. What it waits for is shown by meterplex sagas show (docs/offboarding.md).`
}

// Run prints the offboarding.
func (c *TenantsOffboardStart) Run(a *app) error {
	return a.create(client.Path("tenants", c.ID, "offboard"), c.IdempotencyKey, map[string]string{"reason": c.Reason})
}

// TenantsOffboardShow shows an offboarding.
type TenantsOffboardShow struct {
	ID string `arg:"" help:"The tenant's id."`
}

// Run prints it.
func (c *TenantsOffboardShow) Run(a *app) error {
	return a.show(client.Path("tenants", c.ID, "offboard"), nil)
}

// TenantsOffboardCancel cancels an offboarding.
type TenantsOffboardCancel struct {
	ID     string `arg:"" help:"The tenant's id."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Once
}

// Run prints the offboarding.
func (c *TenantsOffboardCancel) Run(a *app) error {
	return a.create(client.Path("tenants", c.ID, "offboard", "cancel"), c.IdempotencyKey, map[string]string{"reason": c.Reason})
}
