package repair

import "github.com/meterplex/meterplex/http/console"

const (
	rebuildsPath   = console.Prefix + "/rebuilds"
	rebuildPath    = rebuildsPath + "/{rebuildId}"
	diffPath       = rebuildPath + "/diff"
	diffEventsPath = diffPath + "/events"
	newRebuildPath = console.Prefix + "/new/rebuild"
	newVerifyPath  = console.Prefix + "/new/verify"
)

// Pages lists the pages, in the order of the navigation.
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

func rebuildsPage() *console.Page {
	return &console.Page{Path: rebuildsPath, Title: "Rebuilds", Group: "Operations", Menu: "Rebuilds", Template: "rebuilds.html",
		Needs:  "GET /api/v1/rebuilds",
		Params: []string{"cursor"}, CLI: []string{"meterplex projections list", "meterplex projections rebuilds"},
		Load: func(v *console.Visit) (console.Doc, error) {
			of := v.Pick("cursor")
			of.Set("limit", "50")
			return v.All(map[string]console.Section{"projections": {Path: console.API("projections")},
				"rebuilds": {Path: console.API("rebuilds"), Query: of}})
		}}
}

// scopeFields select the keys of a rebuild or a verify.
func scopeFields() []console.Field {
	return []console.Field{
		{Name: "projection", Is: "name", Hint: "A name of the list of projections, e.g. usage_aggregates."},
		{Name: "tenantId", Hint: "Of one tenant only."},
		{Name: "periodKey", Label: "Period", Hint: "Of one period only: 2026-05, 2026 or lifetime."},
		{Name: "workers", Hint: "How many partitions are read at once; half the processors of the instance if empty."},
	}
}

func newRebuildPage() *console.Page {
	return &console.Page{Path: newRebuildPath, Title: "New rebuild",
		Text:   "A rebuild counts the log again, beside the live rows. Readers do not see it until it is promoted.",
		Needs:  "POST /api/v1/projections/{name}/rebuilds",
		Params: []string{"key", "projection"}, CLI: []string{"meterplex projections rebuild --help"},
		Actions: []*console.Action{{Name: "start-rebuild", Path: newRebuildPath, Label: "Start the rebuild",
			Does: "POST /api/v1/projections/{name}/rebuilds", Fields: scopeFields(),
			Next: console.Made(rebuildsPath, "id")}}}
}

func newVerifyPage() *console.Page {
	return &console.Page{Path: newVerifyPath, Title: "Verify a projection",
		Text:   "A verify computes every row from the log by the live version and compares. Any key that differs is an incident.",
		Needs:  "POST /api/v1/projections/{name}/verify",
		Params: []string{"key", "projection"}, CLI: []string{"meterplex projections verify --help"},
		Actions: []*console.Action{{Name: "verify", Path: newVerifyPath, Label: "Compare with the log",
			Does:   "POST /api/v1/projections/{name}/verify",
			Fields: append(scopeFields(), console.Field{Name: "repair", Label: "Repair: replace the live rows where they differ"}),
			Next:   console.Made(rebuildsPath, "rebuildId")}}}
}

// decisionOn is an action on the rebuild of the page.
func decisionOn(name, path, label, warn string) *console.Action {
	return &console.Action{Name: name, Path: path + "/" + name, Label: label, Warn: warn, Does: "POST /api/v1/rebuilds/{rebuildId}/" + name}
}

// rollback takes back the promotion that the page displays, and no later one.
func rollback() *console.Action {
	a := decisionOn("rollback", rebuildPath, "Roll back to the figures before", "Readers see the previous figures again.")
	a.Matches = true
	return a
}

func rebuildPage() *console.Page {
	return &console.Page{Path: rebuildPath, Title: "Rebuild", Template: "rebuild.html", Needs: "GET /api/v1/rebuilds/{rebuildId}",
		Find: console.FindByID("Rebuild", "rebuilds"),
		CLI:  []string{"meterplex projections status {rebuildId}"},
		Actions: []*console.Action{
			rollback(),
			decisionOn("abandon", rebuildPath, "Abandon the rebuild", "Its rows are dropped. This cannot be undone."),
		},
		Live: &console.Live{Template: "rebuild-progress"}}
}
