package events

import (
	"time"

	"github.com/google/uuid"
)

// The nouns of the catalogue. Each is declared here once: as the payload of its events, the answer of the API, and the value of its row.
// Events are stored for ever: golden files (testdata) guard the names of their members.

// Tenant is a customer of the service's user, the payload of TenantCreated and TenantChanged.
type Tenant struct {
	ID     uuid.UUID `json:"id"`
	Name   string    `json:"name"`
	Class  string    `json:"class"`  // small, medium or large
	Status string    `json:"status"` // ACTIVE, SUSPENDED or ARCHIVED
	// Mode is live or test, fixed at the creation. A test tenant is never closed by a policy, never pushed, and in no figure of all
	// tenants.
	Mode string `json:"mode" enum:"live,test" doc:"Fixed at the creation. The keys of a tenant have its mode. A test tenant is never closed by a policy, never delivered to the billing provider, and in no figure of all tenants unless asked."`
	// DataResidency is the required place of the tenant's data. Each event keeps the
	// residency under which it was recorded.
	DataResidency string    `json:"dataResidency"`
	CreatedAt     time.Time `json:"createdAt"`
	// ExternalIDs are the tenant's ids in other systems, sorted. No two tenants share one.
	ExternalIDs []string          `json:"externalIds,omitempty" nullable:"false" doc:"The tenant's ids in other systems, sorted; each belongs to one tenant."`
	Metadata    map[string]string `json:"metadata,omitempty" doc:"Notes about the tenant; the service does not interpret them."`
	// LateUsage is the policy for usage of closed periods, LateUsageReject or LateUsageAdjust.
	LateUsage string `json:"lateUsage,omitempty" enum:"REJECT,ADJUST" doc:"How usage of a closed period is handled: it is refused, or it counts as an adjustment."`
	// CloseAfterHours is the time from the end of a period until it is closed; nil: periods are closed by request only.
	CloseAfterHours *int `json:"closeAfterHours,omitempty" doc:"Hours from the end of a period until the service closes it; left out if periods are closed by request only."`
	// Billing is the tenant's customer at the billing provider; nil: amounts are not pushed.
	Billing *Billing `json:"billing,omitempty" doc:"The tenant's customer at the billing provider; left out: its amounts are not delivered."`
	// ErasedAt is the time at which the tenant's personal data was erased; nil: it is not.
	ErasedAt *time.Time `json:"erasedAt,omitempty" doc:"When the name, external ids and metadata of the archived tenant were erased, with the metadata of its usage; left out: they are not."`
}

// Billing names a customer of a billing provider.
type Billing struct {
	Provider string `json:"provider"` // ProviderStripe
	Customer string `json:"customer"` // the provider's id
}

// ProviderStripe is the billing provider that counts Stripe meter events.
const ProviderStripe = "stripe"

// APIKey is a key, the payload of APIKeyCreated and APIKeyRevoked. It holds no secret and no
// hash of one.
type APIKey struct {
	ID        uuid.UUID  `json:"id" format:"uuid"`
	TenantID  uuid.UUID  `json:"tenantId" format:"uuid"` // Nil for an operator key
	Name      string     `json:"name"`
	Prefix    string     `json:"prefix" doc:"First characters of the key; safe to show."` // mp_live_ and the first characters of the secret
	Mode      string     `json:"mode" enum:"live,test,op"`
	Scopes    []string   `json:"scopes" nullable:"false"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt"`
	RevokedAt *time.Time `json:"revokedAt" doc:"The key is refused from this time on; it is in the future while a rotation overlaps."`
}

// APIKeyRotation is the payload of APIKeyRotated: Old expires when the overlap ends.
type APIKeyRotation struct {
	New APIKey `json:"new"`
	Old APIKey `json:"old"`
}

// Feature is a function that tenants can use.
type Feature struct {
	LookupKey string `json:"lookupKey"`
	Name      string `json:"name"`
	Type      string `json:"type"` // BOOLEAN, QUOTA or METERED
	Unit      string `json:"unit,omitempty"`
	// GroupBy are the metadata keys by which the usage series groups, at most two.
	GroupBy []string `json:"groupBy,omitempty" nullable:"false" doc:"Metadata keys by which GET /usage groups."`
	// BillingEvent is the event name of the meter that counts the feature at the billing provider; "": the lookup key.
	BillingEvent string `json:"billingEvent,omitempty" doc:"Event name of the meter that counts the feature at the billing provider; left out: the lookup key."`
}

// DefinedFeature is the payload of FeatureDefined.
type DefinedFeature struct {
	Feature
	// GroupBySince is set if the event changes the keys of a feature: they apply to usage recorded then or later. The
	// keys of the event that defines a new feature apply to all its usage.
	GroupBySince *time.Time `json:"groupBySince,omitempty"`
}

// Entitlement is a plan's grant of a feature. Limit nil means no limit.
type Entitlement struct {
	Feature       string `json:"feature"`
	Limit         *int64 `json:"limit"`
	LimitBehavior string `json:"limitBehavior,omitempty"` // HARD or SOFT
	ResetPeriod   string `json:"resetPeriod,omitempty"`   // MONTHLY, ANNUALLY or NEVER
	OnIngest      string `json:"onIngest,omitempty"`      // record or enforce
	Price         string `json:"price,omitempty" doc:"Key of the price of the amount; left out: no price."`
	ChargeTrial   bool   `json:"chargeTrial,omitempty" doc:"Usage of a TRIALING subscription is charged; left out: it costs 0."`
}

// Plan is a named set of entitlements, the payload of PlanDefined.
type Plan struct {
	Key          string        `json:"key"`
	Name         string        `json:"name"`
	Entitlements []Entitlement `json:"entitlements"`
}

// Grant is an entitlement in a subscription's snapshot, with its feature's type and unit. It is complete, so a verdict
// needs no other data.
type Grant struct {
	Entitlement
	Type         string `json:"type"`
	Unit         string `json:"unit,omitempty"`
	PriceVersion int64  `json:"priceVersion,omitempty" doc:"Version of the price that was current when the plan was applied, or the prices were last moved on."`
}

// Subscription is a tenant's plan with a snapshot of it, the payload of SubscriptionCreated and SubscriptionChanged.
type Subscription struct {
	ID           uuid.UUID `json:"id"`
	TenantID     uuid.UUID `json:"tenantId"`
	Plan         string    `json:"plan"`
	Status       string    `json:"status"` // ACTIVE, TRIALING, PAST_DUE, CANCELLED or EXPIRED
	Entitlements []Grant   `json:"entitlements"`
	StartsAt     time.Time `json:"startsAt" doc:"Usage before the start of the tenant's first subscription counts, and costs 0."`
	CreatedAt    time.Time `json:"createdAt"`
}

// Price is a price of an amount of a feature in a period, the payload of PriceDefined. Money is in micro-units, millionths of the
// currency's unit: no computation needs a fraction.
type Price struct {
	Key         string      `json:"key" doc:"The key of the price."`
	Version     int64       `json:"version" doc:"From 1, one more after each change. Versions never change."`
	Name        string      `json:"name" doc:"The name of the price."`
	Currency    string      `json:"currency" doc:"ISO 4217." example:"EUR"`
	Model       string      `json:"model" enum:"flat,per_unit,package,graduated,volume" doc:"The way in which the amount is rated."`
	MicroUnits  *int64      `json:"microUnits,omitempty" doc:"Of flat, of a unit, or of a package: millionths of the currency's unit."`
	PackageSize int64       `json:"packageSize,omitempty" doc:"Units in a package."`
	Tiers       []PriceTier `json:"tiers,omitempty" nullable:"false" doc:"Of graduated and volume, rising; the last has no upTo."`
}

// PriceTier is the rate of the units up to UpTo, nil in the last tier.
type PriceTier struct {
	UpTo           *int64 `json:"upTo" doc:"The last unit of the tier; null in the last tier."`
	MicroUnits     int64  `json:"microUnits" doc:"Of each unit: millionths of the currency's unit."`
	FlatMicroUnits int64  `json:"flatMicroUnits,omitempty" doc:"Of the tier, once a unit lies in it."`
}
