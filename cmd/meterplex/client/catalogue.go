package client

// Feature is a feature of the catalogue.
type Feature struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Unit    string   `json:"unit,omitempty"`
	GroupBy []string `json:"groupBy,omitempty"`

	BillingEvent string `json:"billingEvent,omitempty"`
}

// Plan is a plan with its entitlements.
type Plan struct {
	Name         string        `json:"name"`
	Entitlements []Entitlement `json:"entitlements"`
}

// Entitlement is one entitlement; for a BOOLEAN feature it has only the name.
type Entitlement struct {
	Feature       string `json:"feature"`
	Limit         *int64 `json:"limit,omitempty"`
	LimitBehavior string `json:"limitBehavior,omitempty"`
	ResetPeriod   string `json:"resetPeriod,omitempty"`
	OnIngest      string `json:"onIngest,omitempty"`
	Price         string `json:"price,omitempty"`
	ChargeTrial   bool   `json:"chargeTrial,omitempty"`
}
