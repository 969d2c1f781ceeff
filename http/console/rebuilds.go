package console

const (
	rebuildsPath   = Prefix + "/rebuilds"
	rebuildPath    = rebuildsPath + "/{rebuildId}"
	diffPath       = rebuildPath + "/diff"
	diffEventsPath = diffPath + "/events"
	newRebuildPath = Prefix + "/new/rebuild"
	newVerifyPath  = Prefix + "/new/verify"
)

func rebuildsPage() *page {
	return &page{path: rebuildsPath, title: "Rebuilds", menu: "Rebuilds", template: "rebuilds.html", needs: "GET /api/v1/rebuilds",
		params: []string{"cursor"}, cli: []string{"meterplex projections list", "meterplex projections rebuilds"},
		load: func(v *visit) (doc, error) {
			of := v.pick("cursor")
			of.Set("limit", "50")
			return v.all(map[string]section{"projections": {api("projections"), nil}, "rebuilds": {api("rebuilds"), of}})
		}}
}

// scopeFields select the keys of a rebuild or a verify.
func scopeFields() []field {
	return []field{
		{name: "projection", is: "name", hint: "A name of the list of projections, e.g. usage_aggregates."},
		{name: "tenantId", hint: "Of one tenant only."},
		{name: "periodKey", label: "Period", hint: "Of one period only: 2026-05, 2026 or lifetime."},
		{name: "workers", hint: "How many partitions are folded at once; half the processors of the instance if empty."},
	}
}

func newRebuildPage() *page {
	return &page{path: newRebuildPath, title: "New rebuild", text: "A rebuild folds the log again, beside the live rows. Readers do not see it until it is promoted.", needs: "POST /api/v1/projections/{name}/rebuilds",
		params: []string{"key", "projection"}, cli: []string{"meterplex projections rebuild --help"},
		actions: []*action{{name: "start-rebuild", path: newRebuildPath, label: "Start the rebuild", does: "POST /api/v1/projections/{name}/rebuilds", fields: scopeFields(),
			next: made(rebuildsPath, "id")}}}
}

func newVerifyPage() *page {
	return &page{path: newVerifyPath, title: "Verify a projection", text: "A verify folds the log by the live version and compares every row. Any key that differs is an incident.", needs: "POST /api/v1/projections/{name}/verify",
		params: []string{"key", "projection"}, cli: []string{"meterplex projections verify --help"},
		actions: []*action{{name: "verify", path: newVerifyPath, label: "Compare with the log", does: "POST /api/v1/projections/{name}/verify",
			fields: append(scopeFields(), field{name: "repair", label: "Repair: replace the live rows where they differ"}),
			next:   made(rebuildsPath, "rebuildId")}}}
}

// decisionOn is an action on the rebuild of the page.
func decisionOn(name, path, label, warn string) *action {
	return &action{name: name, path: path + "/" + name, label: label, warn: warn, does: "POST /api/v1/rebuilds/{rebuildId}/" + name}
}

// rollback takes back the promotion that the page displays, and no later one.
func rollback() *action {
	a := decisionOn("rollback", rebuildPath, "Roll back to the figures before", "Readers see the figures of the previous generation again.")
	a.matches = true
	return a
}

func rebuildPage() *page {
	return &page{path: rebuildPath, title: "Rebuild", template: "rebuild.html", needs: "GET /api/v1/rebuilds/{rebuildId}",
		cli: []string{"meterplex projections status {rebuildId}"},
		actions: []*action{
			rollback(),
			decisionOn("abandon", rebuildPath, "Abandon the rebuild", "Its rows are dropped. This cannot be undone."),
		},
		live: &live{template: "rebuild-progress"}}
}
