package main

// featureBody is a feature of the catalogue.
type featureBody struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Unit string `json:"unit,omitempty"`
}

// planBody is a plan with its entitlements.
type planBody struct {
	Name         string            `json:"name"`
	Entitlements []entitlementBody `json:"entitlements"`
}

// entitlementBody is one entitlement; for a BOOLEAN feature it has only the name.
type entitlementBody struct {
	Feature       string `json:"feature"`
	Limit         *int64 `json:"limit,omitempty"`
	LimitBehavior string `json:"limitBehavior,omitempty"`
	ResetPeriod   string `json:"resetPeriod,omitempty"`
	OnIngest      string `json:"onIngest,omitempty"`
}
