package domain

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Feature types, limit behaviours, reset periods and subscription states, as the API
// writes them.
const (
	FeatureBoolean = "BOOLEAN"
	FeatureQuota   = "QUOTA"
	FeatureMetered = "METERED"

	LimitHard = "HARD"
	LimitSoft = "SOFT"

	ResetMonthly  = "MONTHLY"
	ResetAnnually = "ANNUALLY"
	ResetNever    = "NEVER"

	OnIngestRecord  = "record"
	OnIngestEnforce = "enforce"

	SubscriptionActive    = "ACTIVE"
	SubscriptionTrialing  = "TRIALING"
	SubscriptionPastDue   = "PAST_DUE"
	SubscriptionCancelled = "CANCELLED"
	SubscriptionExpired   = "EXPIRED"

	TenantActive    = "ACTIVE"
	TenantSuspended = "SUSPENDED"
	TenantArchived  = "ARCHIVED" // offboarded

	// Modes of tenants and of their keys.
	ModeLive = "live"
	ModeTest = "test" // for tests of a customer: its usage is not billed
)

// Tenant is a customer of the service's user.
type Tenant struct {
	ID     uuid.UUID `json:"id"`
	Name   string    `json:"name"`
	Class  string    `json:"class"`  // small, medium or large
	Status string    `json:"status"` // ACTIVE, SUSPENDED or ARCHIVED
	// Mode is ModeLive or ModeTest, fixed at the creation. A test tenant is never closed by a policy, never pushed, and in no figure of all tenants.
	Mode string `json:"mode" enum:"live,test" doc:"Fixed at the creation. The keys of a tenant have its mode. A test tenant is never closed by a policy, never pushed to billing, and in no figure of all tenants unless asked."`
	// DataResidency is the required place of the tenant's data. Each event keeps the
	// residency under which it was recorded.
	DataResidency string    `json:"dataResidency"`
	CreatedAt     time.Time `json:"createdAt"`
	// ExternalIDs are the tenant's ids in other systems, sorted. No two tenants share one.
	ExternalIDs []string          `json:"externalIds,omitempty" nullable:"false" doc:"The tenant's ids in other systems, sorted; each belongs to one tenant."`
	Metadata    map[string]string `json:"metadata,omitempty" doc:"Notes about the tenant; the service does not interpret them."`
	// LateUsage is the policy for usage of closed periods, events.LateUsageReject or events.LateUsageAdjust.
	LateUsage string `json:"lateUsage,omitempty" enum:"REJECT,ADJUST" doc:"What becomes of usage of a closed period: it is refused, or it counts as an adjustment."`
	// CloseAfterHours is the time from the end of a period until it is closed; nil: periods are closed by request only.
	CloseAfterHours *int `json:"closeAfterHours,omitempty" doc:"Hours from the end of a period until the service closes it; left out if periods are closed by request only."`
	// Billing is the tenant's customer at the billing provider; nil: amounts are not pushed.
	Billing *events.Billing `json:"billing,omitempty" doc:"The tenant's customer at the billing provider; left out: amounts are not pushed."`
	// ErasedAt is the time at which the tenant's personal data was erased; nil: it is not.
	ErasedAt *time.Time `json:"erasedAt,omitempty" doc:"When the name, external ids and metadata of the archived tenant were erased, with the metadata of its usage; left out: they are not."`
}

// Equal reports whether two tenants have the same members.
func (t *Tenant) Equal(o *Tenant) bool {
	return t.ID == o.ID && t.Name == o.Name && t.Class == o.Class && t.Status == o.Status && t.Mode == o.Mode && t.DataResidency == o.DataResidency &&
		t.CreatedAt.Equal(o.CreatedAt) && slices.Equal(t.ExternalIDs, o.ExternalIDs) && maps.Equal(t.Metadata, o.Metadata) && t.SamePolicy(o) && t.SameBilling(o)
}

// SameBilling reports whether two tenants have the same customer at the billing provider.
func (t *Tenant) SameBilling(o *Tenant) bool {
	return (t.Billing == nil) == (o.Billing == nil) && (t.Billing == nil || *t.Billing == *o.Billing)
}

// SamePolicy reports whether two tenants have the same policy for their periods.
func (t *Tenant) SamePolicy(o *Tenant) bool {
	return t.LateUsage == o.LateUsage && (t.CloseAfterHours == nil) == (o.CloseAfterHours == nil) &&
		(t.CloseAfterHours == nil || *t.CloseAfterHours == *o.CloseAfterHours)
}

// APIKey is a key without its secret. TenantID is Nil for operator keys.
type APIKey struct {
	ID        uuid.UUID  `json:"id"`
	TenantID  uuid.UUID  `json:"tenantId"`
	Name      string     `json:"name"`
	Prefix    string     `json:"prefix"` // may be shown: mp_live_ and the first characters
	Mode      string     `json:"mode"`   // live, test or op
	Scopes    []string   `json:"scopes"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt"`
	RevokedAt *time.Time `json:"revokedAt"`
	// Ended says that the key was ended at once. Instances have different clocks: none of them decides on RevokedAt then.
	Ended bool `json:"-"`
}

// End ends the key at once, or at a time after an overlap, unless it ends earlier already.
func (k *APIKey) End(now time.Time, overlap time.Duration) {
	k.Ended = k.Ended || overlap <= 0
	if at := now.Add(overlap); k.RevokedAt == nil || at.Before(*k.RevokedAt) {
		k.RevokedAt = &at
	}
}

// Payload returns the key as events store it.
func (k *APIKey) Payload() events.APIKey {
	return events.APIKey{ID: k.ID, TenantID: k.TenantID, Name: k.Name, Prefix: k.Prefix, Mode: k.Mode, Scopes: k.Scopes,
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt}
}

// Usable reports whether the key may be used at a time.
func (k *APIKey) Usable(now time.Time) bool {
	end := k.Until()
	return !k.Ended && (end == nil || now.Before(*end))
}

// Until returns the time at which the key expires or the overlap of its rotation ends; nil if the key has no end.
func (k *APIKey) Until() *time.Time {
	if k.ExpiresAt == nil || k.RevokedAt != nil && k.RevokedAt.Before(*k.ExpiresAt) {
		return k.RevokedAt
	}
	return k.ExpiresAt
}

// Unauthenticated refuses every invalid key. It is always the same, so that it does not reveal whether a key exists.
func Unauthenticated() *Error {
	return &Error{Code: "unauthenticated", Message: "Send a valid key as Authorization: Bearer mp_…"}
}

// Refuse returns why a request with the key is refused at a time; nil if it is not. The tenant is nil for operators' keys.
func (k *APIKey) Refuse(of *Tenant, now time.Time) *Error {
	if k == nil || !k.Usable(now) || (of == nil) != (k.TenantID == events.Platform) {
		return Unauthenticated()
	}
	return of.Refuse()
}

// Refuse returns why requests of the tenant are refused; nil if they are not. The keys of an archived tenant are revoked, too.
func (t *Tenant) Refuse() *Error {
	switch {
	case t != nil && t.Status == TenantArchived:
		return Unauthenticated()
	case t != nil && t.Status == TenantSuspended:
		return &Error{Code: "tenant_suspended", Message: "The tenant is suspended; its keys are refused until an operator activates it"}
	}
	return nil
}

// Feature is a function that tenants can use.
type Feature struct {
	LookupKey string `json:"lookupKey"`
	Name      string `json:"name"`
	Type      string `json:"type"`
	Unit      string `json:"unit,omitempty"`
	// GroupBy are the metadata keys by which the usage series groups, at most MaxGroupKeys.
	GroupBy []string `json:"groupBy,omitempty" nullable:"false" doc:"Metadata keys by which GET /usage groups."`
	// BillingEvent is the event name of the meter that counts the feature at the billing provider; "": the lookup key.
	BillingEvent string `json:"billingEvent,omitempty" doc:"Event name of the meter that counts the feature at the billing provider; left out: the lookup key."`
}

// Equal reports whether two features have the same members.
func (f *Feature) Equal(o *Feature) bool {
	return f.LookupKey == o.LookupKey && f.Name == o.Name && f.Type == o.Type && f.Unit == o.Unit && slices.Equal(f.GroupBy, o.GroupBy) &&
		f.BillingEvent == o.BillingEvent
}

// Entitlement is a plan's grant of a feature. Limit nil means no limit.
type Entitlement struct {
	Feature       string `json:"feature"`
	Limit         *int64 `json:"limit"`
	LimitBehavior string `json:"limitBehavior,omitempty"`
	ResetPeriod   string `json:"resetPeriod,omitempty"`
	OnIngest      string `json:"onIngest,omitempty"`
	Price         string `json:"price,omitempty" doc:"Key of the price of the amount; left out: none."`
	ChargeTrial   bool   `json:"chargeTrial,omitempty" doc:"Usage of a TRIALING subscription is charged; left out: it costs 0."`
}

// Plan is a named set of entitlements.
type Plan struct {
	Key          string        `json:"key"`
	Name         string        `json:"name"`
	Entitlements []Entitlement `json:"entitlements"`
}

// Payload returns the plan as events store it.
func (p *Plan) Payload() events.Plan {
	e := events.Plan{Key: p.Key, Name: p.Name, Entitlements: make([]events.Entitlement, len(p.Entitlements))}
	for i := range p.Entitlements {
		e.Entitlements[i] = events.Entitlement(p.Entitlements[i])
	}
	return e
}

// Grant is an entitlement in a subscription's snapshot. It is complete, so a verdict
// needs no other data.
type Grant struct {
	Entitlement
	Type         string `json:"type"`
	Unit         string `json:"unit,omitempty"`
	PriceVersion int64  `json:"priceVersion,omitempty" doc:"Version of the price that was current when the plan was applied, or the prices were last moved on."`
}

// Subscription is a tenant's plan with a snapshot of it.
type Subscription struct {
	ID           uuid.UUID `json:"id"`
	TenantID     uuid.UUID `json:"tenantId"`
	Plan         string    `json:"plan"`
	Status       string    `json:"status"`
	Entitlements []Grant   `json:"entitlements"`
	StartsAt     time.Time `json:"startsAt" doc:"Usage before the start of the tenant's first subscription counts, and costs 0."`
	CreatedAt    time.Time `json:"createdAt"`
}

// Payload returns the subscription as events store it.
func (s *Subscription) Payload() events.Subscription {
	e := events.Subscription{ID: s.ID, TenantID: s.TenantID, Plan: s.Plan, Status: s.Status, CreatedAt: s.CreatedAt, StartsAt: s.StartsAt,
		Entitlements: make([]events.Grant, len(s.Entitlements))}
	for i := range s.Entitlements {
		g := &s.Entitlements[i]
		e.Entitlements[i] = events.Grant{Entitlement: events.Entitlement(g.Entitlement), Type: g.Type, Unit: g.Unit, PriceVersion: g.PriceVersion}
	}
	return e
}

// SubscriptionOf returns the subscription that an event stored.
func SubscriptionOf(e *events.Subscription) Subscription {
	s := Subscription{ID: e.ID, TenantID: e.TenantID, Plan: e.Plan, Status: e.Status, StartsAt: e.StartsAt, CreatedAt: e.CreatedAt,
		Entitlements: make([]Grant, len(e.Entitlements))}
	for i := range e.Entitlements {
		g := &e.Entitlements[i]
		s.Entitlements[i] = Grant{Entitlement: Entitlement(g.Entitlement), Type: g.Type, Unit: g.Unit, PriceVersion: g.PriceVersion}
	}
	return s
}

// AcceptsUsage reports whether usage may be recorded for the subscription.
func (s *Subscription) AcceptsUsage() bool {
	return s != nil && (s.Status == SubscriptionActive || s.Status == SubscriptionTrialing)
}

// Grant returns the snapshot's grant of a feature, or nil.
func (s *Subscription) Grant(feature string) *Grant {
	for i := range s.Entitlements {
		if s.Entitlements[i].Feature == feature {
			return &s.Entitlements[i]
		}
	}
	return nil
}
