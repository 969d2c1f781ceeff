package console

import "net/http"

// evaluationPage shows what the usage of a period costs each tenant by another price. It reads by POST: the price is in the body.
func evaluationPage() *page {
	return &page{path: Prefix + "/evaluation", title: "Evaluate a price", menu: "Evaluate a price", template: "evaluation.html", needs: "POST /api/v1/prices/evaluate",
		params: []string{"periodKey", "priceKey", "version", "price", "feature", "tenantId", "position", "rebuildId", "cursor"},
		cli: []string{"meterplex prices evaluate {priceKey} --period {periodKey}[ --version {version}][ --feature {feature}][ --tenant {tenantId}][ --position {position}][ --rebuild {rebuildId}]",
			"meterplex prices evaluate --help"},
		load: func(v *visit) (doc, error) {
			if v.query.Get("periodKey") == "" {
				return doc{}, nil
			}
			body := map[string]any{}
			for name, text := range v.pick("periodKey", "priceKey", "feature", "tenantId", "position", "rebuildId") {
				body[name] = text[0]
			}
			req := request{Method: http.MethodPost, Path: api("prices", "evaluate"), Query: limited(evaluationsShown, v.pick("cursor")), Body: body}
			for _, name := range []string{"version", "price"} {
				in := field{name: name, label: labelOf(name), holds: holdsJSON}
				if v.query.Get(name) == "" {
					continue
				}
				var err error
				if body[name], err = in.value(form{v.query}); err != nil {
					return nil, err
				}
			}
			v.asked = append(v.asked, req)
			return v.mainOf(v.do(req))
		}}
}

// evaluationsShown bounds the tenants of a page.
const evaluationsShown = 50
