package console

import (
	"slices"
	"strings"

	"github.com/meterplex/meterplex/http/problem"
)

const cataloguePath = Prefix + "/catalogue"

// cataloguePage shows the begin of three lists, or more of one that its address names.
func cataloguePage() *page {
	return &page{path: cataloguePath, title: "Catalogue", menu: "Catalogue", template: "catalogue.html", needs: "GET /api/v1/features",
		params: []string{"list", "cursor"}, cli: []string{"meterplex features list", "meterplex plans list", "meterplex prices list"},
		load: func(v *visit) (doc, error) {
			lists := []string{"features", "plans", "prices"}
			if one := v.query.Get("list"); one != "" {
				if !slices.Contains(lists, one) {
					return nil, problem.New("parameter_invalid", "list must be features, plans or prices")
				}
				lists = []string{one}
			} else if v.query.Get("cursor") != "" {
				return nil, problem.New("parameter_missing", "A cursor needs its list: features, plans or prices")
			}
			data := doc{}
			for _, name := range lists {
				found, err := v.get(api(name), limited(50, v.pick("cursor")))
				if err != nil {
					return nil, err
				}
				data[name] = found
			}
			return data, nil
		}}
}

func featurePage() *page {
	const path = cataloguePath + "/features/{lookupKey}"
	return &page{path: path, title: "Feature", template: "feature.html", needs: "GET /api/v1/features/{lookupKey}",
		cli:     []string{"meterplex features show {lookupKey}", "meterplex features put --help"},
		actions: []*action{putting("put-feature", path, "Change the feature", putFeature, featureFields()[1:])}}
}

func newFeaturePage() *page {
	const path = Prefix + "/new/feature"
	return &page{path: path, title: "New feature", template: "feature_new.html", needs: putFeature, cli: []string{"meterplex features put --help"},
		actions: []*action{defining("define-feature", path, "Define the feature", putFeature, featureFields())}}
}

func featureFields() []field {
	return []field{
		{name: "lookupKey", hint: "As usage names it, e.g. api_calls."},
		{name: "name"},
		{name: "type", options: []string{"QUOTA", "METERED", "BOOLEAN"}, hint: "The type stays."},
		{name: "unit"},
		{name: "groupBy", label: "Grouped by", hint: "At most two keys of metadata, separated by commas."},
		{name: "billingEvent", hint: "The event name of the provider's meter; empty: the lookup key."},
	}
}

func planPage() *page {
	const path = cataloguePath + "/plans/{key}"
	return &page{path: path, title: "Plan", template: "plan.html", needs: "GET /api/v1/plans/{key}",
		params:  []string{"cursor"},
		cli:     []string{"meterplex plans show {key}", "meterplex plans subscriptions {key} --older", "meterplex plans put --help"},
		load:    loadPlan,
		actions: []*action{putting("put-plan", path, "Change the plan", putPlan, planFields()[1:])}}
}

// loadPlan reads a plan, and the subscriptions that go on with an earlier state of it.
func loadPlan(v *visit) (doc, error) {
	plan, err := v.get(api("plans", v.param("key")), nil)
	if err != nil {
		return nil, err
	}
	query := limited(olderShown, v.pick("cursor"))
	query.Set("snapshot", "older")
	older, err := v.try(api("plans", v.param("key"), "subscriptions"), query)
	return doc{"plan": plan, "older": older}, err
}

// olderShown bounds the subscriptions on the page of a plan.
const olderShown = 25

func newPlanPage() *page {
	const path = Prefix + "/new/plan"
	return &page{path: path, title: "New plan", template: "plan_new.html", needs: putPlan, cli: []string{"meterplex plans put --help"},
		actions: []*action{defining("define-plan", path, "Define the plan", putPlan, planFields())}}
}

func planFields() []field {
	return []field{
		{name: "key", hint: "As subscriptions name it."},
		{name: "name"},
		{name: "entitlements", hint: `JSON, as PUT /plans/{key} takes it, e.g. [{"feature":"api_calls","limit":50000,"limitBehavior":"HARD","resetPeriod":"MONTHLY","price":"calls"}].`},
	}
}

func pricePage() *page {
	const path = cataloguePath + "/prices/{priceKey}"
	return &page{path: path, title: "Price", template: "price.html", needs: "GET /api/v1/prices/{priceKey}",
		cli:     []string{"meterplex prices show {priceKey}", "meterplex prices put --help"},
		load:    loadPrice,
		actions: []*action{putting("put-price", path, "Change the price", putPrice, priceFields()[1:])}}
}

// loadPrice reads a price and its first versions.
func loadPrice(v *visit) (doc, error) {
	price, err := v.get(api("prices", v.param("priceKey")), nil)
	if err != nil {
		return nil, err
	}
	price["versions"], err = v.try(api("prices", v.param("priceKey"), "versions"), limited(versionsShown, nil))
	return price, err
}

// versionsShown bounds the versions on the page of a price.
const versionsShown = 100

func newPricePage() *page {
	const path = Prefix + "/new/price"
	return &page{path: path, title: "New price", template: "price_new.html", needs: putPrice, cli: []string{"meterplex prices put --help"},
		actions: []*action{defining("define-price", path, "Define the price", putPrice, priceFields())}}
}

func priceFields() []field {
	return []field{
		{name: "priceKey", label: "Key", hint: "As entitlements of plans name it."},
		{name: "name"},
		{name: "currency", hint: "ISO 4217, e.g. EUR."},
		{name: "model", options: []string{"per_unit", "flat", "package", "graduated", "volume"}},
		{name: "microUnits", label: "Micro-units"},
		{name: "packageSize"},
		{name: "tiers", hint: `JSON, of graduated and volume, e.g. [{"upTo":1000,"microUnits":500},{"upTo":null,"microUnits":300}].`},
	}
}

// Operations that define an entry of the catalogue.
const (
	putFeature = "PUT /api/v1/features/{lookupKey}"
	putPlan    = "PUT /api/v1/plans/{key}"
	putPrice   = "PUT /api/v1/prices/{priceKey}"
)

// putting is the action that changes an entry of the catalogue. It replaces the entry that the page displays, and no later one.
func putting(name, path, label, does string, fields []field) *action {
	return &action{name: name, path: path + "/change", label: label, does: does, fields: fields, matches: true}
}

// defining is the action that makes an entry of the catalogue. It replaces none.
func defining(name, path, label, does string, fields []field) *action {
	return &action{name: name, path: path, label: label, does: does, fields: fields, creates: true,
		next: func(_ *visit, f form, _ doc) string {
			list, _, _ := strings.Cut(strings.TrimPrefix(does, "PUT /api/v1/"), "/")
			return cataloguePath + pathOf(list, f.get(fields[0].name))
		}}
}
