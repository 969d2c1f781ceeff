package tenants

import (
	"fmt"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// Erase erases the personal data of tenants.
type Erase struct {
	IDs    []string `arg:"" name:"id" help:"The tenants' ids."`
	Reason string   `required:"" placeholder:"TEXT" help:"The reason, recorded in the log; without personal data."`
	Yes    bool     `help:"Skip the confirmation."`
}

// Help returns the long help text.
func (Erase) Help() string {
	return `The name, external ids and metadata of each tenant are erased, and the metadata of its usage: in the log and in all tables.
Figures stay. It cannot be undone. Only the data of an archived tenant is erased: meterplex tenants offboard start. Which data stays:
docs/reference/personal-data.md.`
}

// Run prints the erasures. Without --yes it asks for confirmation.
func (c *Erase) Run(a *app.App) error {
	if !c.Yes {
		agreed, err := a.Agreed(fmt.Sprintf("This cannot be undone. Erase the personal data of %d tenants?", len(c.IDs)))
		if err != nil {
			return err
		}
		if !agreed {
			return app.ErrNo
		}
	}
	for _, id := range c.IDs {
		if err := a.Create(client.Path("tenants", id, "erase"), "", map[string]string{"reason": c.Reason}); err != nil {
			return err
		}
	}
	return nil
}
