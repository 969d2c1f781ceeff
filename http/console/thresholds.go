package console

import "net/http"

const (
	thresholdsPath   = tenantPath + "/thresholds"
	newThresholdPath = tenantPath + "/new/threshold"
)

func thresholdsPage() *page {
	return &page{path: thresholdsPath, title: "Thresholds", template: "thresholds.html", needs: "GET /api/v1/tenants/{tenantId}/thresholds", who: operator, scopes: readers(),
		params: []string{"cursor"}, limit: 100, cli: []string{"meterplex thresholds list --tenant {tenantId}"},
		actions: []*action{{name: "remove-threshold", path: thresholdsPath + "/{thresholdId}/remove", label: "Remove", who: operator, scopes: billing(), bare: true,
			request: func(v *visit, _ form) (request, error) {
				return request{Method: http.MethodDelete, Path: api("tenants", v.param("tenantId"), "thresholds", v.param("thresholdId"))}, nil
			}}}}
}

// newThresholdPage holds the Idempotency-Key of its form in its address.
func newThresholdPage() *page {
	const path = newThresholdPath
	return &page{path: path, title: "New threshold", template: "threshold_new.html", needs: "POST /api/v1/tenants/{tenantId}/thresholds", who: operator, scopes: billing(),
		params: []string{"key"}, cli: []string{"meterplex thresholds create --help"},
		actions: []*action{{name: "create-threshold", path: path, label: "Create the threshold", who: operator, scopes: billing(), bare: true,
			fields: []field{
				{name: "feature", label: "Feature", optional: true, hint: "The key of a feature; empty: each feature, each on its own."},
				{name: "percent", label: "Percent", kind: "number", optional: true, hint: "Of the limit, 1 to 1000."},
				{name: "amount", label: "Amount", kind: "number", optional: true, hint: "In place of percent: a used amount."},
			},
			request: func(v *visit, f form) (request, error) {
				body := map[string]any{}
				if feature := f.get("feature"); feature != "" {
					body["feature"] = feature
				}
				if err := f.exact(body, "percent", "amount"); err != nil {
					return request{}, err
				}
				return request{Method: http.MethodPost, Path: api("tenants", v.param("tenantId"), "thresholds"), Body: body}, nil
			},
			next: func(v *visit, _ form, _ doc) string { return v.expand(thresholdsPath) }}}}
}
