package events

import "github.com/meterplex/meterplex/http/console"

// eventsPages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		eventsPage(),
		eventPage(),
		lineagePage(),
	}
}
