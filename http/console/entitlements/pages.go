package entitlements

import "github.com/meterplex/meterplex/http/console"

// entitlementsPages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		entitlementsPage(),
		comparisonPage(),
		reservationsPage(),
	}
}
