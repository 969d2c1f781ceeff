// Package commands loads, decides and appends: it is the only writer of the event
// log. It knows no database, broker or transport; what it needs of them are the
// small interfaces of this file.
package commands

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// ErrUnavailable says that the store did not answer, or that what it did is not
// known: nothing may be claimed, the caller should send the same request again.
var ErrUnavailable = errors.New("the event log is not available")

// Overloaded is ErrUnavailable where something is known: more waits already than is
// done in reasonable time, and nothing of this was begun.
type Overloaded struct {
	Wait     time.Duration // how long that takes, as estimated
	Database bool          // what is short is connections of the database
}

func (o *Overloaded) Error() string {
	return "more waits than is done in reasonable time; nothing of this was begun"
}

// Unwrap makes it an ErrUnavailable: the same may be sent again.
func (o *Overloaded) Unwrap() error { return ErrUnavailable }

// Caller is who a command comes from.
type Caller struct {
	TenantID      uuid.UUID // Platform for operator keys
	KeyID         uuid.UUID
	Scopes        []string
	CorrelationID uuid.UUID
	Replay        string // the Meterplex-Replay header
	Residency     string // of the tenant; "" for operator keys
	// Actor is who acts where that is no key.
	Actor events.Actor
}

// Has reports whether the caller holds a scope; admin includes the other
// operator scopes.
func (c *Caller) Has(scope string) bool {
	for _, s := range c.Scopes {
		if s == scope || (s == ScopeAdmin && (scope == ScopeBilling || scope == ScopeAudit)) {
			return true
		}
	}
	return false
}

func (c *Caller) actor() events.Actor {
	if c.Actor.Type != "" {
		return c.Actor
	}
	return events.Actor{Type: "api_key", ID: c.KeyID.String()}
}

// Scopes of tenant keys and of operator keys.
const (
	ScopeUsageWrite          = "usage:write"
	ScopeUsageBackfill       = "usage:backfill"
	ScopeUsageRead           = "usage:read"
	ScopeEntitlementsRead    = "entitlements:read"
	ScopeEntitlementsReserve = "entitlements:reserve"
	ScopeEventsRead          = "events:read"

	ScopeAdmin   = "admin"
	ScopeBilling = "billing"
	ScopeAudit   = "audit"
)

// TenantScopes and OperatorScopes list what keys of each kind may hold.
func TenantScopes() []string {
	return []string{ScopeUsageWrite, ScopeUsageBackfill, ScopeUsageRead, ScopeEntitlementsRead, ScopeEntitlementsReserve, ScopeEventsRead}
}

// OperatorScopes lists what operator keys may hold.
func OperatorScopes() []string { return []string{ScopeAdmin, ScopeBilling, ScopeAudit} }

// Submitted is an event on its way into the log. ProbeOnly asks only whether its
// key is known: it is classified, but never stored.
type Submitted struct {
	events.Pending
	ProbeOnly bool
	// Inbox is the key under which a refusal of this event is recorded, "" where
	// refusals are only answered. Where the log has it, the event was refused before:
	// it is neither compared nor stored, however often it is delivered.
	Inbox string
	// Refusal, whose key is Inbox, is stored in place of a ProbeOnly event whose own
	// key is not known.
	Refusal *events.Pending
}

// Placement says what became of a submitted event.
type Placement struct {
	Status   PlacementStatus
	Position events.Position // of the event itself, or of the one that was there first
}

// PlacementStatus is one of the constants below.
type PlacementStatus int

// What can become of a submitted event.
const (
	Unknown   PlacementStatus = iota // never returned without an error
	Appended                         // stored now
	Duplicate                        // the same payload is stored at Position
	Conflict                         // another payload is stored at Position; the conflict is recorded
	Absent                           // ProbeOnly, and the key is not known
	Refused                          // the refusal is stored at Position, now or before
)

// UsageLog takes usage into the log.
type UsageLog interface {
	// Submit appends the events of one tenant in their order, deduplicating inside
	// the transaction that stores them, together with what others submit at the
	// same time. It returns after commit; a commit that is not answered is looked
	// up until the truth is known. The error is ErrUnavailable (wrapped) where
	// that did not succeed: then nothing is known; or it is Overloaded, at once:
	// then nothing was stored. Without an error nothing refers to batch any more.
	Submit(ctx context.Context, tenant uuid.UUID, batch []Submitted) ([]Placement, error)
	// Admit is Overloaded where Submit would be now. It is asked before a batch is
	// read, so that refusing costs less than serving.
	Admit(tenant uuid.UUID) error
}

// Histories gives the subscriptions that verdicts are taken from.
type Histories interface {
	// Cached may be older than the tables by as much as the other instances need
	// to tell of a change; Fresh reads the tables. Both are as of "now": every
	// entry counts, whatever its position.
	Cached(ctx context.Context, tenant uuid.UUID) (domain.History, error)
	Fresh(ctx context.Context, tenant uuid.UUID) (domain.History, error)
}

// Once is an Idempotency-Key with the hash of the request it came with. The zero
// value means that the caller gave none.
type Once struct {
	Key         string
	RequestHash [32]byte
}

// Answer is the stored first answer to a request with an Idempotency-Key.
type Answer struct {
	RequestHash [32]byte
	Body        []byte
}

// Store runs changes of the catalogue.
type Store interface {
	// Change runs decide in one transaction that holds the head of the tenant's
	// partition (Platform: partition 0), so that what it loads cannot change before
	// it appends. An error of decide rolls back and is returned as it is.
	Change(ctx context.Context, tenant uuid.UUID, decide func(Tx) error) error
}

// Tx is what a change can load, keep and append. Loads give nil where there is nothing.
type Tx interface {
	Answer(key string) (*Answer, error)
	SaveAnswer(key string, a Answer) error

	Tenant(id uuid.UUID) (*domain.Tenant, error)
	SaveTenant(t domain.Tenant) error
	Key(id uuid.UUID) (*domain.APIKey, error)
	// SaveKey keeps a key; secretHash is nil where the key exists already.
	SaveKey(k domain.APIKey, secretHash []byte) error
	Feature(lookupKey string) (*domain.Feature, error)
	SaveFeature(f domain.Feature) error
	Plan(key string) (*domain.Plan, error)
	SavePlan(p domain.Plan) error
	Subscription(id uuid.UUID) (*domain.Subscription, error)
	// InForce is the subscription of the tenant that is ACTIVE or TRIALING.
	InForce(tenant uuid.UUID) (*domain.Subscription, error)
	SaveSubscription(s domain.Subscription) error
	SaveHistory(tenant uuid.UUID, e domain.HistoryEntry) error
	// DeadLetters gives those of the ids that are dead letters of the partition.
	DeadLetters(ids []uuid.UUID) (map[uuid.UUID]*DeadLetter, error)
	// Events reads events of the partition by their numbers.
	Events(numbers []int64) (map[int64]events.Envelope, error)

	// Append gives the event its place in the log.
	Append(p events.Pending) (events.Position, error)
	// AppendAll is Append of many, in their order.
	AppendAll(list []events.Pending) error
}

// DeadLetter is what decides over a dead letter's fate. All but what failed comes
// from the log itself, under the head's lock, so that it is never behind.
type DeadLetter struct {
	ID            uuid.UUID
	TenantID      uuid.UUID
	Stage         string
	Source        int64 // number of the event that failed
	SourceSubject events.Subject
	RawPosition   int64 // number of the recorded event

	Status   string      // FAILED, RETRYING, RESOLVED or DISCARDED
	Attempts int         // retries so far
	Parked   bool        // counted as parked by its last failure, which was no rejection
	Requests int         // times that a bulk asked for a retry
	Waiting  bool        // the last of them is still to be executed
	AskedBy  []uuid.UUID // the bulks that asked for a retry or discarded it
}

// Keyring finds keys.
type Keyring interface {
	// Find gives the key with the secret's SHA-256, and its tenant (nil for
	// operator keys); nil, nil where there is none. What it says is at most a
	// second old; where that cannot be confirmed it is ErrUnavailable.
	Find(ctx context.Context, secretHash [32]byte) (*domain.APIKey, *domain.Tenant, error)
}

// Page asks for a part of a list: up to Limit entries after the id or key After
// ("" for the first page). Lists are in ascending order of id or key.
type Page struct {
	Limit int
	After string
}

// CatalogueReader reads the catalogue for those who may see it.
type CatalogueReader interface {
	Tenants(ctx context.Context, p Page) ([]domain.Tenant, error)
	Tenant(ctx context.Context, id uuid.UUID) (*domain.Tenant, error)
	Keys(ctx context.Context, tenant uuid.UUID, p Page) ([]domain.APIKey, error)
	Features(ctx context.Context, p Page) ([]domain.Feature, error)
	Feature(ctx context.Context, lookupKey string) (*domain.Feature, error)
	Plans(ctx context.Context, p Page) ([]domain.Plan, error)
	Plan(ctx context.Context, key string) (*domain.Plan, error)
	Subscriptions(ctx context.Context, tenant uuid.UUID, p Page) ([]domain.Subscription, error)
	Subscription(ctx context.Context, tenant, id uuid.UUID) (*domain.Subscription, error)
}

// Clock gives the time; the composition root passes time.Now.
type Clock func() time.Time
