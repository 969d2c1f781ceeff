package events

import (
	"time"

	"github.com/google/uuid"
)

// The payloads of the catalogue's events. They are separate structs: a change of the
// API must not rename the members of events that are stored for ever.

// Tenant is the payload of TenantCreated and TenantChanged.
type Tenant struct {
	ID            uuid.UUID `json:"id"`
	Name          string    `json:"name"`
	Class         string    `json:"class"`         // small, medium or large
	Status        string    `json:"status"`        // ACTIVE or SUSPENDED
	DataResidency string    `json:"dataResidency"` // of the events from here on
	CreatedAt     time.Time `json:"createdAt"`
	// ExternalIDs are sorted. Events of releases without ExternalIDs and Metadata lack them.
	ExternalIDs []string          `json:"externalIds,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	// LateUsage is LateUsageReject or LateUsageAdjust; "" in events of earlier releases, as LateUsageReject.
	LateUsage       string `json:"lateUsage,omitempty"`
	CloseAfterHours *int   `json:"closeAfterHours,omitempty"` // after the end of a period; nil: by request only
}

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
	// GroupBy are the metadata keys by which the usage series groups, at most two. Events of releases
	// without it have none.
	GroupBy []string `json:"groupBy,omitempty"`
	// GroupBySince is set if the event changes the keys of a feature: they apply to usage recorded then or later. The
	// keys of the event that defines a new feature apply to all its usage. Events of releases without the member that
	// change keys do not record it: about a minute after OccurredAt.
	GroupBySince *time.Time `json:"groupBySince,omitempty"`
}

// Entitlement is a plan's grant of a feature. Limit nil means no limit.
type Entitlement struct {
	Feature       string `json:"feature"`
	Limit         *int64 `json:"limit"`
	LimitBehavior string `json:"limitBehavior,omitempty"` // HARD or SOFT
	ResetPeriod   string `json:"resetPeriod,omitempty"`   // MONTHLY, ANNUALLY or NEVER
	OnIngest      string `json:"onIngest,omitempty"`      // record or enforce
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
	Type string `json:"type"`
	Unit string `json:"unit,omitempty"`
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
}
