package usage

import "github.com/meterplex/meterplex/http/console"

// usagePages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		usagePage(),
		explainPage(),
		recordsPage(),
		conflictsPage(),
		refusalsPage(),
		receiptPage(),
	}
}
