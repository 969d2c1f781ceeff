package billing

import (
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

const (
	adjustmentsPath = console.Prefix + "/adjustments"
	decisionPath    = console.Prefix + "/adjustments/decision"
)

func adjustmentsPage() *console.Page {
	one := func(name, label, warn string) *console.Action {
		return &console.Action{Name: name, Path: adjustmentsPath + "/{adjustmentId}/" + name, Label: label, Warn: warn,
			Does: "POST /api/v1/adjustments/{adjustmentId}/" + name}
	}
	return &console.Page{Path: adjustmentsPath, Title: "Adjustments", Group: "Billing", Menu: "Adjustments", Template: "adjustments.html",
		New: decisionPath, Needs: "GET /api/v1/adjustments",
		Params: []string{"tenantId", "periodKey", "state", "kind", "feature", "cursor"},
		CLI: []string{"meterplex adjustments list[ --tenant {tenantId}][ --period {periodKey}][ --state {state}][ --kind {kind}][ " +
			"--feature {feature}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			found, err := v.Main(console.API("adjustments"),
				console.Limited(25, v.Pick("tenantId", "periodKey", "state", "kind", "feature", "cursor")))
			return console.Doc{"adjustments": found}, err
		},
		Actions: []*console.Action{
			one("approve", "Approve", "The billable figure includes the amount. A decision is final."),
			one("waive", "Waive", "The amount is not billed. A decision is final."),
		}}
}

// maxDecision bounds the adjustments of one decision by the size of the page that shows them.
const maxDecision = 100

// decisionPage decides many adjustments of a tenant: exactly those that it shows, or none.
func decisionPage() *console.Page {
	return &console.Page{Path: decisionPath, Title: "Decide adjustments", Template: "decision.html",
		Needs:  "POST /api/v1/adjustments/decide",
		Params: []string{"tenantId", "periodKey", "kind", "feature"},
		CLI: []string{"meterplex adjustments list --state PENDING --tenant {tenantId}[ --period {periodKey}][ --kind {kind}][ " +
			"--feature {feature}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			if v.Query.Get("tenantId") == "" {
				return v.Choice()
			}
			found, err := v.Get(console.API("adjustments"),
				console.Limited(maxDecision, console.With(v.Pick("tenantId", "periodKey", "kind", "feature"), "state", "PENDING")))
			if err != nil {
				return nil, err
			}
			ids := []string{}
			for _, entry := range console.Items(found["data"]) {
				ids = append(ids, console.Text(console.Object(entry)["id"]))
			}
			data := console.Doc{"adjustments": found, "ids": strings.Join(ids, ",")}
			if len(ids) > 0 {
				data["preview"], err = v.Preview(console.API("adjustments", "decide"), nil,
					map[string]any{"ids": ids, "decision": "approve", "dryRun": true, "reason": "preview"})
			}
			return data, err
		},
		Actions: []*console.Action{{Name: "decide", Path: decisionPath, Label: "Decide these adjustments",
			Does:   "POST /api/v1/adjustments/decide",
			Warn:   "A decision is final. It decides all adjustments that the page shows; if one is no longer pending, it decides no adjustment.",
			Fields: []console.Field{{Name: "decision"}, {Name: "ids", Label: "Adjustments", Kind: "displayed"}}}}}
}
