package catalogue

import "github.com/meterplex/meterplex/http/console"

// evaluationPage shows the cost of a period's usage by another price, for each tenant. It reads by POST: the price is in the body.
func evaluationPage() *console.Page {
	return &console.Page{Path: console.Prefix + "/evaluation", Title: "Evaluate a price", Group: "Catalogue", Menu: "Evaluate a price",
		Template: "evaluation.html", Needs: "POST /api/v1/prices/evaluate",
		Params: []string{"periodKey", "priceKey", "version", "price", "feature", "tenantId", "position", "rebuildId", "cursor"},
		CLI: []string{"meterplex prices evaluate {priceKey} --period {periodKey}[ --version {version}][ --feature {feature}][ --tenant " +
			"{tenantId}][ --position {position}][ --rebuild {rebuildId}]",
			"meterplex prices evaluate --help"},
		Load: func(v *console.Visit) (console.Doc, error) {
			if v.Query.Get("periodKey") == "" {
				return console.Doc{}, nil
			}
			body := map[string]any{}
			for name, text := range v.Pick("periodKey", "priceKey", "feature", "tenantId", "position", "rebuildId") {
				body[name] = text[0]
			}
			for _, name := range []string{"version", "price"} {
				if v.Query.Get(name) == "" {
					continue
				}
				var err error
				if body[name], err = console.JSONOf(name, v.Query.Get(name)); err != nil {
					return nil, err
				}
			}
			return v.MainOf(v.Preview(console.API("prices", "evaluate"), console.Limited(evaluationsShown, v.Pick("cursor")), body))
		}}
}

// evaluationsShown bounds the tenants of a page.
const evaluationsShown = 50
