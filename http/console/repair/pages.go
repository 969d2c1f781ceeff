package repair

import "github.com/meterplex/meterplex/http/console"

// repairPages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		lettersPage(),
		bulkPage(),
		letterPage(),
		rebuildsPage(),
		newRebuildPage(),
		newVerifyPage(),
		rebuildPage(),
		diffPageOf(),
		diffEventsPage(),
		replaysPage(),
		newReplayPage(),
		newRewindPage(),
		replayPageOf(),
	}
}
