// Package catalogue has the pages of features, plans and prices.
package catalogue

import (
	"net/http"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/problem"
)

const (
	cataloguePath = console.Prefix + "/catalogue"
	newPlanPath   = console.Prefix + "/new/plan"
)

// Pages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		cataloguePage(),
		newFeaturePage(),
		featurePage(),
		newPlanPage(),
		planPage(),
		newPricePage(),
		pricePage(),
		evaluationPage(),
	}
}

// cataloguePage shows the begin of three lists, or more of one that its address names.
func cataloguePage() *console.Page {
	return &console.Page{Path: cataloguePath, Title: "Catalogue", Group: "Catalogue", Menu: "Catalogue", Template: "catalogue.html",
		New: newPlanPath, Needs: "GET /api/v1/features",
		Params: []string{"list", "cursor"}, CLI: []string{"meterplex features list", "meterplex plans list", "meterplex prices list"},
		Load: func(v *console.Visit) (console.Doc, error) {
			lists := []string{"features", "plans", "prices"}
			if one := v.Query.Get("list"); one != "" {
				if !slices.Contains(lists, one) {
					return nil, problem.New("parameter_invalid", "list must be features, plans or prices")
				}
				lists = []string{one}
			} else if v.Query.Get("cursor") != "" {
				return nil, problem.New("parameter_missing", "A cursor needs its list: features, plans or prices")
			}
			data := console.Doc{}
			for _, name := range lists {
				found, err := v.Get(console.API(name), console.Limited(50, v.Pick("cursor")))
				if err != nil {
					return nil, err
				}
				data[name] = found
			}
			return data, nil
		}}
}

func featurePage() *console.Page {
	const path = cataloguePath + "/features/{lookupKey}"
	return &console.Page{Path: path, Title: "Feature", Template: "feature.html", Needs: "GET /api/v1/features/{lookupKey}",
		CLI:     []string{"meterplex features show {lookupKey}", "meterplex features put --help"},
		Actions: []*console.Action{putting("put-feature", path, "Change the feature", putFeature, featureFields()[1:])}}
}

func newFeaturePage() *console.Page {
	const path = console.Prefix + "/new/feature"
	return &console.Page{Path: path, Title: "New feature", Needs: putFeature,
		CLI:     []string{"meterplex features put --help"},
		Actions: []*console.Action{defining("define-feature", path, "Define the feature", putFeature, featureFields())}}
}

func featureFields() []console.Field {
	return []console.Field{
		{Name: "lookupKey", Hint: "As usage names it, e.g. api_calls."},
		{Name: "name"},
		{Name: "type", Options: []string{"QUOTA", "METERED", "BOOLEAN"}, Hint: "The type stays."},
		{Name: "unit"},
		{Name: "groupBy", Label: "Grouped by", Hint: "At most two keys of metadata, separated by commas."},
		{Name: "billingEvent", Hint: "The event name of the provider's meter; empty: the lookup key."},
	}
}

func planPage() *console.Page {
	const path = cataloguePath + "/plans/{key}"
	return &console.Page{Path: path, Title: "Plan", Template: "plan.html", Needs: "GET /api/v1/plans/{key}",
		Params:  []string{"cursor"},
		CLI:     []string{"meterplex plans show {key}", "meterplex plans subscriptions {key} --older", "meterplex plans put --help"},
		Load:    loadPlan,
		Actions: []*console.Action{putting("put-plan", path, "Change the plan", putPlan, planFields()[1:])}}
}

// loadPlan reads a plan, and the subscriptions that go on with an earlier state of it.
func loadPlan(v *console.Visit) (console.Doc, error) {
	plan, err := v.Get(console.API("plans", v.Param("key")), nil)
	if err != nil {
		return nil, err
	}
	query := console.Limited(olderShown, v.Pick("cursor"))
	query.Set("snapshot", "older")
	older, err := v.Try(console.API("plans", v.Param("key"), "subscriptions"), query)
	if err != nil {
		return nil, err
	}
	return choices(v, console.Doc{"pageTitle": plan["name"], "plan": plan, "older": older})
}

// olderShown bounds the subscriptions on the page of a plan.
const olderShown = 25

func newPlanPage() *console.Page {
	const path = newPlanPath
	return &console.Page{Path: path, Title: "New plan", Needs: putPlan,
		CLI:     []string{"meterplex plans put --help"},
		Load:    func(v *console.Visit) (console.Doc, error) { return choices(v, console.Doc{}) },
		Actions: []*console.Action{defining("define-plan", path, "Define the plan", putPlan, planFields())}}
}

func planFields() []console.Field {
	return []console.Field{
		{Name: "key", Hint: "As subscriptions name it."},
		{Name: "name"},
		{Name: "entitlements", Rows: cells("feature", "limit", "limitBehavior", "resetPeriod", "onIngest", "price", "chargeTrial"),
			Hint: "An empty row is left out. Without a limit the feature is unlimited. HARD refuses usage above it, SOFT reports it."},
	}
}

func pricePage() *console.Page {
	const path = cataloguePath + "/prices/{priceKey}"
	return &console.Page{Path: path, Title: "Price", Template: "price.html", Needs: "GET /api/v1/prices/{priceKey}",
		CLI:     []string{"meterplex prices show {priceKey}", "meterplex prices put --help"},
		Load:    loadPrice,
		Actions: []*console.Action{putting("put-price", path, "Change the price", putPrice, priceFields()[1:])}}
}

// loadPrice reads a price and its first versions.
func loadPrice(v *console.Visit) (console.Doc, error) {
	price, err := v.Get(console.API("prices", v.Param("priceKey")), nil)
	if err != nil {
		return nil, err
	}
	price["versions"], err = v.Try(console.API("prices", v.Param("priceKey"), "versions"), console.Limited(versionsShown, nil))
	return price, err
}

// versionsShown bounds the versions on the page of a price.
const versionsShown = 100

func newPricePage() *console.Page {
	const path = console.Prefix + "/new/price"
	return &console.Page{Path: path, Title: "New price", Needs: putPrice,
		CLI:     []string{"meterplex prices put --help"},
		Actions: []*console.Action{defining("define-price", path, "Define the price", putPrice, priceFields())}}
}

func priceFields() []console.Field {
	return []console.Field{
		{Name: "priceKey", Label: "Key", Hint: "As entitlements of plans name it."},
		{Name: "name"},
		{Name: "currency", Hint: "ISO 4217, e.g. EUR."},
		{Name: "model", Options: []string{"per_unit", "flat", "package", "graduated", "volume"}},
		{Name: "microUnits", Label: "Micro-units"},
		{Name: "packageSize"},
		{Name: "tiers", Rows: cells("upTo", "microUnits", "flatMicroUnits"),
			Hint: "Of graduated and volume. The last tier has no last unit."},
	}
}

// cells are the inputs of a row.
func cells(names ...string) (row []console.Field) {
	for _, name := range names {
		row = append(row, console.Field{Name: name})
	}
	return row
}

// choices are the keys of features and prices that the form of a plan suggests: the first ones of a long list.
func choices(v *console.Visit, into console.Doc) (console.Doc, error) {
	for name, key := range map[string]string{"feature": "lookupKey", "price": "key"} {
		list, err := console.Tried(v.Do(console.Request{Method: http.MethodGet, Path: console.API(name + "s"),
			Query: console.Limited(100, nil)}))
		if err != nil {
			return nil, err
		}
		keys := []any{}
		for _, entry := range console.Items(list["data"]) {
			keys = append(keys, console.Member(entry, key))
		}
		into[name+"Choices"] = keys
	}
	return into, nil
}

// Operations that define an entry of the catalogue.
const (
	putFeature = "PUT /api/v1/features/{lookupKey}"
	putPlan    = "PUT /api/v1/plans/{key}"
	putPrice   = "PUT /api/v1/prices/{priceKey}"
)

// putting is the action that changes an entry of the catalogue. It replaces the entry that the page displays, and no later one.
func putting(name, path, label, does string, fields []console.Field) *console.Action {
	return &console.Action{Name: name, Path: path + "/change", Label: label, Does: does, Fields: fields, Matches: true}
}

// defining is the action that makes an entry of the catalogue. It never replaces one.
func defining(name, path, label, does string, fields []console.Field) *console.Action {
	return &console.Action{Name: name, Path: path, Label: label, Does: does, Fields: fields, Creates: true,
		Next: func(_ *console.Visit, f console.Form, _ console.Doc) string {
			list, _, _ := strings.Cut(strings.TrimPrefix(does, "PUT /api/v1/"), "/")
			return cataloguePath + console.PathOf(list, f.Get(fields[0].Name))
		}}
}
