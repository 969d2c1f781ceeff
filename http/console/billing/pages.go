package billing

import "github.com/meterplex/meterplex/http/console"

// billingPages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		periodsPage(),
		periodPage(),
		adjustmentsPage(),
		decisionPage(),
		pushesPage(),
		pushPage(),
	}
}
