package domain

import (
	"time"

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

// The nouns of the catalogue are declared in events. Those with rules of their own are types here.
type (
	Tenant       events.Tenant
	Subscription events.Subscription
	Feature      = events.Feature
	Entitlement  = events.Entitlement
	Plan         = events.Plan
	Grant        = events.Grant
)

// SameBilling reports whether two tenants have the same customer at the billing provider.
func (t *Tenant) SameBilling(o *Tenant) bool {
	return (t.Billing == nil) == (o.Billing == nil) && (t.Billing == nil || *t.Billing == *o.Billing)
}

// APIKey is a key without its secret. TenantID is Nil for operator keys.
type APIKey struct {
	events.APIKey
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
