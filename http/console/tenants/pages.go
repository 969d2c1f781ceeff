package tenants

import "github.com/meterplex/meterplex/http/console"

// tenantsPages lists the pages, in the order of the navigation.
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
