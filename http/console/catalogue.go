package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/http/problem"
)

const cataloguePath = Prefix + "/catalogue"

// cataloguePage shows the begin of three lists, or more of one that its address names.
func cataloguePage() *page {
	return &page{path: cataloguePath, title: "Catalogue", menu: "Catalogue", template: "catalogue.html", needs: "GET /api/v1/features", who: operator, scopes: admins(),
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
	return &page{path: path, title: "Feature", template: "feature.html", needs: "GET /api/v1/features/{lookupKey}", who: operator, scopes: admins(),
		cli:     []string{"meterplex features show {lookupKey}", "meterplex features put --help"},
		actions: []*action{putting("put-feature", path, "Change the feature", "lookupKey", featureFields()[1:], "features", featureBody)}}
}

func newFeaturePage() *page {
	const path = Prefix + "/new/feature"
	return &page{path: path, title: "New feature", template: "feature_new.html", needs: "PUT /api/v1/features/{lookupKey}", who: operator, scopes: admins(), cli: []string{"meterplex features put --help"},
		actions: []*action{defining("define-feature", path, "Define the feature", "lookupKey", featureFields(), "features", featureBody)}}
}

func featureFields() []field {
	return []field{
		{name: "lookupKey", label: "Lookup key", hint: "As usage names it, e.g. api_calls."},
		{name: "name", label: "Name"},
		{name: "type", label: "Type", kind: "select", options: []string{"QUOTA", "METERED", "BOOLEAN"}, hint: "The type stays."},
		{name: "unit", label: "Unit", optional: true},
		{name: "groupBy", label: "Grouped by", optional: true, hint: "At most two keys of metadata, separated by commas."},
		{name: "billingEvent", label: "Billing event", optional: true, hint: "The event name of the provider's meter; empty: the lookup key."},
	}
}

func featureBody(f form) (map[string]any, error) {
	body := map[string]any{"name": f.get("name"), "type": f.get("type")}
	for _, name := range []string{"unit", "billingEvent"} {
		if value := f.get(name); value != "" {
			body[name] = value
		}
	}
	if keys := words(f.get("groupBy"), ","); len(keys) > 0 {
		body["groupBy"] = keys
	}
	return body, nil
}

func planPage() *page {
	const path = cataloguePath + "/plans/{key}"
	return &page{path: path, title: "Plan", template: "plan.html", needs: "GET /api/v1/plans/{key}", who: operator, scopes: admins(),
		params:  []string{"cursor"},
		cli:     []string{"meterplex plans show {key}", "meterplex plans subscriptions {key} --older", "meterplex plans put --help"},
		load:    loadPlan,
		actions: []*action{putting("put-plan", path, "Change the plan", "key", planFields()[1:], "plans", planBody)}}
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
	return &page{path: path, title: "New plan", template: "plan_new.html", needs: "PUT /api/v1/plans/{key}", who: operator, scopes: admins(), cli: []string{"meterplex plans put --help"},
		actions: []*action{defining("define-plan", path, "Define the plan", "key", planFields(), "plans", planBody)}}
}

func planFields() []field {
	return []field{
		{name: "key", label: "Key", hint: "As subscriptions name it."},
		{name: "name", label: "Name"},
		{name: "entitlements", label: "Entitlements", kind: "area", hint: `JSON, as PUT /plans/{key} takes it, e.g. [{"feature":"api_calls","limit":50000,"limitBehavior":"HARD","resetPeriod":"MONTHLY","price":"calls"}].`},
	}
}

func planBody(f form) (map[string]any, error) {
	body := map[string]any{"name": f.get("name")}
	return body, f.exact(body, "entitlements")
}

func pricePage() *page {
	const path = cataloguePath + "/prices/{priceKey}"
	return &page{path: path, title: "Price", template: "price.html", needs: "GET /api/v1/prices/{priceKey}", who: operator, scopes: admins(),
		cli:     []string{"meterplex prices show {priceKey}", "meterplex prices put --help"},
		load:    loadPrice,
		actions: []*action{putting("put-price", path, "Change the price", "priceKey", priceFields()[1:], "prices", priceBody)}}
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
	return &page{path: path, title: "New price", template: "price_new.html", needs: "PUT /api/v1/prices/{priceKey}", who: operator, scopes: admins(), cli: []string{"meterplex prices put --help"},
		actions: []*action{defining("define-price", path, "Define the price", "priceKey", priceFields(), "prices", priceBody)}}
}

func priceFields() []field {
	return []field{
		{name: "priceKey", label: "Key", hint: "As entitlements of plans name it."},
		{name: "name", label: "Name"},
		{name: "currency", label: "Currency", hint: "ISO 4217, e.g. EUR."},
		{name: "model", label: "Model", kind: "select", options: []string{"per_unit", "flat", "package", "graduated", "volume"}},
		{name: "microUnits", label: "Micro-units", kind: "number", optional: true, hint: "Of flat, of a unit, or of a package: millionths of the currency's unit."},
		{name: "packageSize", label: "Package size", kind: "number", optional: true},
		{name: "tiers", label: "Tiers", kind: "area", optional: true, hint: `JSON, of graduated and volume, e.g. [{"upTo":1000,"microUnits":500},{"upTo":null,"microUnits":300}].`},
	}
}

func priceBody(f form) (map[string]any, error) {
	body := map[string]any{"name": f.get("name"), "currency": f.get("currency"), "model": f.get("model")}
	return body, f.exact(body, "microUnits", "packageSize", "tiers")
}

// putting is the action that changes an entry of the catalogue. It replaces the entry that the page displays, and no later one.
func putting(name, path, label, key string, fields []field, list string, body func(f form) (map[string]any, error)) *action {
	return &action{name: name, path: path + "/change", label: label, who: operator, scopes: admins(), bare: true, fields: fields, matches: true,
		request: func(v *visit, f form) (request, error) {
			members, err := body(f)
			return request{Method: http.MethodPut, Path: api(list, v.param(key)), Body: members}, err
		}}
}

// defining is the action that makes an entry of the catalogue. It replaces none.
func defining(name, path, label, key string, fields []field, list string, body func(f form) (map[string]any, error)) *action {
	return &action{name: name, path: path, label: label, who: operator, scopes: admins(), bare: true, fields: fields, creates: true,
		request: func(_ *visit, f form) (request, error) {
			members, err := body(f)
			return request{Method: http.MethodPut, Path: api(list, f.get(key)), Body: members}, err
		},
		next: func(_ *visit, f form, _ doc) string { return cataloguePath + pathOf(list, f.get(key)) }}
}

// words splits a text, and leaves out what is empty.
func words(text, by string) (all []string) {
	for word := range strings.SplitSeq(text, by) {
		if word = strings.TrimSpace(word); word != "" {
			all = append(all, word)
		}
	}
	return all
}

// exact adds fields that hold JSON to the body of a request, each with the digits and members that were written: the API decides on them. Empty
// fields are left out.
func (f form) exact(body map[string]any, names ...string) error {
	for _, name := range names {
		written := strings.TrimSpace(f.get(name))
		if written == "" {
			continue
		}
		if !json.Valid([]byte(written)) {
			return problem.New("body_invalid", "The field "+name+" is not JSON").At("/" + name)
		}
		body[name] = json.RawMessage(written)
	}
	return nil
}
