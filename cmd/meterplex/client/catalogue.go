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

// Price is a price of an amount, in micro-units.
type Price struct {
	Name        string      `json:"name"`
	Currency    string      `json:"currency"`
	Model       string      `json:"model"`
	MicroUnits  *int64      `json:"microUnits,omitempty"`
	PackageSize int64       `json:"packageSize,omitempty"`
	Tiers       []PriceTier `json:"tiers,omitempty"`
}

// PriceTier is a tier of a price; UpTo is nil in the last.
type PriceTier struct {
	UpTo           *int64 `json:"upTo,omitempty"`
	MicroUnits     int64  `json:"microUnits"`
	FlatMicroUnits int64  `json:"flatMicroUnits,omitempty"`
}
