package operate

import "github.com/meterplex/meterplex/http/console"

// operatePages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		overviewPage(),
		systemPage(),
		settingsPage(),
		withheldPage(),
		sagasPage(),
		sagaPage(),
	}
}
