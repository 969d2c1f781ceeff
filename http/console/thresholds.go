package console

const (
	thresholdsPath   = tenantPath + "/thresholds"
	newThresholdPath = tenantPath + "/new/threshold"
)

func thresholdsPage() *page {
	return &page{path: thresholdsPath, title: "Thresholds", template: "thresholds.html", needs: "GET /api/v1/tenants/{tenantId}/thresholds",
		params: []string{"cursor"}, limit: 100, cli: []string{"meterplex thresholds list --tenant {tenantId}"},
		actions: []*action{{name: "remove-threshold", path: thresholdsPath + "/{thresholdId}/remove", label: "Remove", does: "DELETE /api/v1/tenants/{tenantId}/thresholds/{thresholdId}"}}}
}

// newThresholdPage holds the Idempotency-Key of its form in its address.
func newThresholdPage() *page {
	const path = newThresholdPath
	return &page{path: path, title: "New threshold", template: "threshold_new.html", needs: "POST /api/v1/tenants/{tenantId}/thresholds",
		params: []string{"key"}, cli: []string{"meterplex thresholds create --help"},
		actions: []*action{{name: "create-threshold", path: path, label: "Create the threshold", does: "POST /api/v1/tenants/{tenantId}/thresholds",
			fields: []field{
				{name: "feature", hint: "The key of a feature; empty: each feature, each on its own."},
				{name: "percent", hint: "Of the limit, 1 to 1000."},
				{name: "amount", hint: "In place of percent: a used amount."},
			},
			next: func(v *visit, _ form, _ doc) string { return v.expand(thresholdsPath) }}}}
}
