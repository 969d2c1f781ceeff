package events

import (
	"time"

	"github.com/google/uuid"
)

// The nouns of the catalogue. Each is declared here once: as the payload of its events, the answer of the API, and the value of its row. Events are
// stored for ever: golden files (testdata) guard the names of their members.

// Tenant is the payload of TenantCreated and TenantChanged.
type Tenant struct {
	ID            uuid.UUID `json:"id"`
	Name          string    `json:"name"`
	Class         string    `json:"class"`         // small, medium or large
	Status        string    `json:"status"`        // ACTIVE, SUSPENDED or ARCHIVED
	Mode          string    `json:"mode"`          // live or test
	DataResidency string    `json:"dataResidency"` // of the events from here on
	CreatedAt     time.Time `json:"createdAt"`
	// ExternalIDs are sorted.
	ExternalIDs []string          `json:"externalIds,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	// LateUsage is LateUsageReject or LateUsageAdjust.
	LateUsage       string `json:"lateUsage"`
	CloseAfterHours *int   `json:"closeAfterHours,omitempty"` // after the end of a period; nil: by request only
	// Billing is the tenant's customer at the billing provider; nil: amounts are not pushed.
	Billing *Billing `json:"billing,omitempty"`
	// ErasedAt is set once the name, ExternalIDs and Metadata are erased.
	ErasedAt *time.Time `json:"erasedAt,omitempty"`
}

// Billing names a customer of a billing provider.
type Billing struct {
	Provider string `json:"provider"` // ProviderStripe
	Customer string `json:"customer"` // the provider's id
}

// ProviderStripe is the billing provider that counts Stripe meter events.
const ProviderStripe = "stripe"

// APIKey is the payload of APIKeyCreated and APIKeyRevoked. It holds no secret and no
// hash of one.
type APIKey struct {
	ID        uuid.UUID  `json:"id"`
	TenantID  uuid.UUID  `json:"tenantId"` // Nil for an operator key
	Name      string     `json:"name"`
	Prefix    string     `json:"prefix"` // the key's first characters
	Mode      string     `json:"mode"`   // live, test or op
	Scopes    []string   `json:"scopes"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt"`
	RevokedAt *time.Time `json:"revokedAt"`
}

// APIKeyRotation is the payload of APIKeyRotated: Old expires when the overlap ends.
type APIKeyRotation struct {
	New APIKey `json:"new"`
	Old APIKey `json:"old"`
}

// Feature is the payload of FeatureDefined.
type Feature struct {
	LookupKey string `json:"lookupKey"`
	Name      string `json:"name"`
	Type      string `json:"type"` // BOOLEAN, QUOTA or METERED
	Unit      string `json:"unit,omitempty"`
	// GroupBy are the metadata keys by which the usage series groups, at most two.
	GroupBy []string `json:"groupBy,omitempty"`
	// GroupBySince is set if the event changes the keys of a feature: they apply to usage recorded then or later. The
	// keys of the event that defines a new feature apply to all its usage.
	GroupBySince *time.Time `json:"groupBySince,omitempty"`
	// BillingEvent is the event name of the meter that counts the feature at the billing provider; "": the lookup key.
	BillingEvent string `json:"billingEvent,omitempty"`
}

// Entitlement is a plan's grant of a feature. Limit nil means no limit.
type Entitlement struct {
	Feature       string `json:"feature"`
	Limit         *int64 `json:"limit"`
	LimitBehavior string `json:"limitBehavior,omitempty"` // HARD or SOFT
	ResetPeriod   string `json:"resetPeriod,omitempty"`   // MONTHLY, ANNUALLY or NEVER
	OnIngest      string `json:"onIngest,omitempty"`      // record or enforce
	Price         string `json:"price,omitempty"`         // key of a price; "": none
	ChargeTrial   bool   `json:"chargeTrial,omitempty"`   // usage of a TRIALING subscription is charged
}

// Plan is the payload of PlanDefined.
type Plan struct {
	Key          string        `json:"key"`
	Name         string        `json:"name"`
	Entitlements []Entitlement `json:"entitlements"`
}

// Grant is an entitlement in a subscription's snapshot, with its feature's type and unit.
type Grant struct {
	Entitlement
	Type         string `json:"type"`
	Unit         string `json:"unit,omitempty"`
	PriceVersion int64  `json:"priceVersion,omitempty"` // of Price
}

// Subscription is the payload of SubscriptionCreated and SubscriptionChanged, with the
// grants as they were then.
type Subscription struct {
	ID           uuid.UUID `json:"id"`
	TenantID     uuid.UUID `json:"tenantId"`
	Plan         string    `json:"plan"`
	Status       string    `json:"status"` // ACTIVE, TRIALING, PAST_DUE, CANCELLED or EXPIRED
	Entitlements []Grant   `json:"entitlements"`
	CreatedAt    time.Time `json:"createdAt"`
	StartsAt     time.Time `json:"startsAt"`
}

// Price is a price of an amount of a feature in a period, the payload of PriceDefined. Money is in micro-units, millionths of the currency's unit: no
// computation needs a fraction.
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
