package cli

import (
	"slices"
	"sync"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/billing"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/catalogue"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/entitlements"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/events"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/operate"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/repair"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/tenants"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/usage"
)

// requests lists the commands of one request.
var requests = sync.OnceValue(func() []app.Command {
	return slices.Concat(tenants.Requests(), catalogue.Requests(), usage.Requests(), events.Requests(), entitlements.Requests(),
		repair.Requests(), billing.Requests(), operate.Requests())
})
