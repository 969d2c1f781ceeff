package console

import (
	"net/url"
	"strings"
)

const (
	adjustmentsPath = Prefix + "/adjustments"
	decisionPath    = Prefix + "/adjustments/decision"
)

func adjustmentsPage() *page {
	one := func(name, label, warn string) *action {
		return &action{name: name, path: adjustmentsPath + "/{adjustmentId}/" + name, label: label, warn: warn, does: "POST /api/v1/adjustments/{adjustmentId}/" + name}
	}
	return &page{path: adjustmentsPath, title: "Adjustments", menu: "Adjustments", template: "adjustments.html", needs: "GET /api/v1/adjustments",
		params: []string{"tenantId", "periodKey", "state", "kind", "feature", "cursor"},
		cli:    []string{"meterplex adjustments list[ --tenant {tenantId}][ --period {periodKey}][ --state {state}][ --kind {kind}][ --feature {feature}]"},
		load: func(v *visit) (doc, error) {
			found, err := v.main(api("adjustments"), limited(25, v.pick("tenantId", "periodKey", "state", "kind", "feature", "cursor")))
			return doc{"adjustments": found}, err
		},
		actions: []*action{
			one("approve", "Approve", "The billable figure includes the amount. A decision is final."),
			one("waive", "Waive", "The amount is not billed. A decision is final."),
		}}
}

// maxDecision bounds the adjustments of one decision by the size of the page that shows them.
const maxDecision = 100

// decisionPage decides many adjustments of a tenant: exactly those that it shows, or none.
func decisionPage() *page {
	return &page{path: decisionPath, title: "Decide adjustments", template: "decision.html", needs: "POST /api/v1/adjustments/decide",
		params: []string{"tenantId", "periodKey", "kind", "feature"},
		cli:    []string{"meterplex adjustments list --state PENDING --tenant {tenantId}[ --period {periodKey}][ --kind {kind}][ --feature {feature}]"},
		load: func(v *visit) (doc, error) {
			if v.query.Get("tenantId") == "" {
				return v.choice()
			}
			found, err := v.get(api("adjustments"), limited(maxDecision, pending(v.pick("tenantId", "periodKey", "kind", "feature"))))
			if err != nil {
				return nil, err
			}
			ids := []string{}
			for _, entry := range items(found["data"]) {
				ids = append(ids, text(object(entry)["id"]))
			}
			data := doc{"adjustments": found, "ids": strings.Join(ids, ",")}
			if len(ids) > 0 {
				data["preview"], err = v.preview(api("adjustments", "decide"), map[string]any{"ids": ids, "decision": "approve", "dryRun": true, "reason": "preview"})
			}
			return data, err
		},
		actions: []*action{{name: "decide", path: decisionPath, label: "Decide these adjustments", does: "POST /api/v1/adjustments/decide",
			warn:   "A decision is final. It decides all adjustments that the page shows, or none of them if one is no longer pending.",
			fields: []field{{name: "decision"}, {name: "ids", label: "Adjustments", kind: "displayed"}}}}}
}

func pending(query url.Values) url.Values {
	query.Set("state", "PENDING")
	return query
}
