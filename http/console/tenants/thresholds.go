package tenants

import "github.com/meterplex/meterplex/http/console"

const (
	thresholdsPath   = TenantPath + "/thresholds"
	newThresholdPath = TenantPath + "/new/threshold"
)

func thresholdsPage() *console.Page {
	return &console.Page{Path: thresholdsPath, Title: "Thresholds", New: newThresholdPath, Template: "thresholds.html",
		Needs:  "GET /api/v1/tenants/{tenantId}/thresholds",
		Params: []string{"cursor"}, Limit: 100, CLI: []string{"meterplex thresholds list --tenant {tenantId}"},
		Actions: []*console.Action{{Name: "remove-threshold", Path: thresholdsPath + "/{thresholdId}/remove", Label: "Remove",
			Does: "DELETE /api/v1/tenants/{tenantId}/thresholds/{thresholdId}"}}}
}

// newThresholdPage holds the Idempotency-Key of its form in its address.
func newThresholdPage() *console.Page {
	const path = newThresholdPath
	return &console.Page{Path: path, Title: "New threshold",
		Text: "Once the used amount of a feature rises to the threshold, an event is recorded: " +
			"once for each feature, period and value.",
		Needs:  "POST /api/v1/tenants/{tenantId}/thresholds",
		Params: []string{"key"}, CLI: []string{"meterplex thresholds create --help"},
		Actions: []*console.Action{{Name: "create-threshold", Path: path, Label: "Create the threshold",
			Does: "POST /api/v1/tenants/{tenantId}/thresholds",
			Fields: []console.Field{
				{Name: "feature", Hint: "The key of a feature; empty: each feature, each on its own."},
				{Name: "percent", Hint: "Of the limit, 1 to 1000."},
				{Name: "amount", Hint: "In place of percent: a used amount."},
			},
			Next: func(v *console.Visit, _ console.Form, _ console.Doc) string { return v.Expand(thresholdsPath) }}}}
}
