// Package pages lists the pages of the console.
package pages

import (
	"slices"

	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/console/billing"
	"github.com/meterplex/meterplex/http/console/catalogue"
	"github.com/meterplex/meterplex/http/console/entitlements"
	"github.com/meterplex/meterplex/http/console/events"
	"github.com/meterplex/meterplex/http/console/operate"
	"github.com/meterplex/meterplex/http/console/repair"
	"github.com/meterplex/meterplex/http/console/tenants"
	"github.com/meterplex/meterplex/http/console/usage"
)

// All lists all pages, in the order of the navigation. Navigation, routes and the search derive from it. A page whose operation of the API
// (needs) is not built is absent.
func All() []*console.Page {
	return slices.Concat(operate.Pages(), tenants.Pages(), usage.Pages(), events.Pages(), entitlements.Pages(), catalogue.Pages(),
		billing.Pages(), repair.Pages())
}
