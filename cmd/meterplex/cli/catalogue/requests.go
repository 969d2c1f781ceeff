package catalogue

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// catalogueRequests lists the commands of one request.
func Requests() []app.Command {
	return []app.Command{
		{Name: "features put", Op: "putFeature"},
		{Name: "features list", Op: "listFeatures", Columns: "lookupKey name type unit"},
		{Name: "features show", Op: "getFeature"},

		{Name: "plans put", Op: "putPlan", File: true, Read: app.Reads{"entitlements": parseEntitlement}, More: plansHelp,
			Tags: app.Tags{"key": `name:"plan"`, "entitlements": `placeholder:"FEATURE=LIMIT,…"`}},
		{Name: "plans list", Op: "listPlans", Columns: "key name entitlements"},
		{Name: "plans show", Op: "getPlan", Tags: app.Tags{"key": `name:"plan"`}},
		{Name: "plans subscriptions", Op: "listPlanSubscriptions", Columns: "id tenantId status createdAt", Own: older{}, Amend: onlyOlder,
			Tags: app.Tags{"key": `name:"plan"`, "snapshot": "-", "--limit": `default:"100"`}},

		{Name: "prices put", Op: "putPrice", File: true, Read: app.Reads{"tiers": parseTier},
			Tags: app.Tags{"tiers": `placeholder:"UPTO=MICROUNITS,…"`}, More: pricesHelp},
		{Name: "prices list", Op: "listPrices", Columns: "key version name currency model microUnits packageSize tiers"},
		{Name: "prices show", Op: "getPrice"},
		{Name: "prices evaluate", Op: "evaluatePrice", Args: "priceKey?", Read: app.Reads{"price": app.ReadFile}, Run: printEvaluation,
			Tags: app.Tags{
				"priceKey": `help:"A defined price; --file for one that is not."`, "rebuildId": `name:"rebuild"`,
				"price": `name:"file" placeholder:"FILE" help:"Read a price that is not defined from a JSON file; needs --feature."`}},
		{Name: "prices versions", Op: "listPriceVersions", Columns: "version name currency model microUnits packageSize tiers"},
	}
}

// older selects subscriptions.
type older struct {
	Older bool `help:"Only subscriptions that have not ended, and whose snapshot differs from the plan."`
}

func onlyOlder(_ *app.App, l *app.Call, in map[string]any) error {
	if app.FlagOf[older](l, "Own").Older {
		in["snapshot"] = "older"
	}
	return nil
}
