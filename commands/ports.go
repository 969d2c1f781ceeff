// Package commands loads, decides and appends: it is the only writer of the event
// log. It depends on no database, broker or transport, only on the small interfaces
// in this file.
package commands

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// ErrUnavailable means that the store did not respond, or that the outcome is
// unknown. The caller should send the same request again.
var ErrUnavailable = errors.New("the event log is not available")

// Overloaded is an ErrUnavailable with a known outcome: the queue is too long for a
// reasonable time, and the request was not started.
type Overloaded struct {
	Wait     time.Duration // estimated time to clear the queue
	Database bool          // database connections are the bottleneck
}

func (o *Overloaded) Error() string {
	return "more waits than is done in reasonable time; nothing of this was begun"
}

// Unwrap makes it an ErrUnavailable: the caller may send the same request again.
func (o *Overloaded) Unwrap() error { return ErrUnavailable }

// Caller is the origin of a command.
type Caller struct {
	TenantID      uuid.UUID // Platform for operator keys
	KeyID         uuid.UUID
	Scopes        []string
	CorrelationID uuid.UUID
	Replay        string // the Meterplex-Replay header
	Residency     string // of the tenant; "" for operator keys
	// Actor is set if the caller does not act with a key.
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

// TenantScopes lists the scopes that tenant keys may hold.
func TenantScopes() []string {
	return []string{ScopeUsageWrite, ScopeUsageBackfill, ScopeUsageRead, ScopeEntitlementsRead, ScopeEntitlementsReserve, ScopeEventsRead}
}

// OperatorScopes lists the scopes that operator keys may hold.
func OperatorScopes() []string { return []string{ScopeAdmin, ScopeBilling, ScopeAudit} }

// Submitted is an event to append to the log. With ProbeOnly the log only checks
// whether the key is known: it classifies the event, but never stores it.
type Submitted struct {
	events.Pending
	ProbeOnly bool
	// Inbox is the key under which a refusal of this event is recorded, "" if refusals
	// are only returned. If the log has the key, the event was refused before. It is
	// then neither compared nor stored, however often it is delivered.
	Inbox string
	// Refusal has the key Inbox. It is stored in place of a ProbeOnly event whose own
	// key is unknown.
	Refusal *events.Pending
}

// Placement is the outcome for a submitted event.
type Placement struct {
	Status   PlacementStatus
	Position events.Position // of the event, or of the one that was stored first
}

// PlacementStatus is one of the constants below.
type PlacementStatus int

// Outcomes for a submitted event.
const (
	Unknown   PlacementStatus = iota // never returned without an error
	Appended                         // stored now
	Duplicate                        // the same payload is stored at Position
	Conflict                         // another payload is stored at Position; the conflict is recorded
	Absent                           // ProbeOnly, and the key is unknown
	Refused                          // the refusal is stored at Position, now or earlier
)

// UsageLog appends usage to the log.
type UsageLog interface {
	// Submit appends the events of one tenant in order and deduplicates them in the
	// transaction that stores them. Concurrent calls may share the transaction. Submit
	// returns after the commit. If a commit gets no response, Submit looks its events
	// up until the outcome is known; if that fails, the error is ErrUnavailable
	// (wrapped), and the outcome is unknown. Overloaded is returned at once, and then
	// no event was stored. Without an error, no reference to batch remains.
	Submit(ctx context.Context, tenant uuid.UUID, batch []Submitted) ([]Placement, error)
	// Admit returns Overloaded if Submit would return it now. It is called before a
	// batch is read, so that a refusal costs less than serving.
	Admit(tenant uuid.UUID) error
}

// Histories loads the subscriptions on which verdicts depend.
type Histories interface {
	// Cached may be older than the tables by the time that the other instances need
	// to announce a change; Fresh reads the tables. Both are as of "now": every entry
	// counts, whatever its position.
	Cached(ctx context.Context, tenant uuid.UUID) (domain.History, error)
	Fresh(ctx context.Context, tenant uuid.UUID) (domain.History, error)
}

// Once is an Idempotency-Key with the hash of its request. The zero value means that
// the caller sent no key.
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
	// partition (Platform: partition 0), so that loaded data cannot change before the
	// append. An error of decide rolls back and is returned unchanged.
	Change(ctx context.Context, tenant uuid.UUID, decide func(Tx) error) error
}

// Tx loads, saves and appends in a change. A load of something that does not exist
// returns nil.
type Tx interface {
	Answer(key string) (*Answer, error)
	SaveAnswer(key string, a Answer) error

	Tenant(id uuid.UUID) (*domain.Tenant, error)
	SaveTenant(t domain.Tenant) error
	Key(id uuid.UUID) (*domain.APIKey, error)
	// SaveKey saves a key; secretHash is nil if the key exists already.
	SaveKey(k domain.APIKey, secretHash []byte) error
	Feature(lookupKey string) (*domain.Feature, error)
	SaveFeature(f domain.Feature) error
	Plan(key string) (*domain.Plan, error)
	SavePlan(p domain.Plan) error
	Subscription(id uuid.UUID) (*domain.Subscription, error)
	// InForce returns the tenant's subscription that is ACTIVE or TRIALING.
	InForce(tenant uuid.UUID) (*domain.Subscription, error)
	SaveSubscription(s domain.Subscription) error
	SaveHistory(tenant uuid.UUID, e domain.HistoryEntry) error
	// DeadLetters returns the dead letters of the partition that have one of the ids.
	DeadLetters(ids []uuid.UUID) (map[uuid.UUID]*DeadLetter, error)
	// Events reads events of the partition by their numbers.
	Events(numbers []int64) (map[int64]events.Envelope, error)

	// Append appends the event and returns its position.
	Append(p events.Pending) (events.Position, error)
	// AppendAll appends many events in order.
	AppendAll(list []events.Pending) error
}

// DeadLetter is the state on which decisions about a dead letter depend. All of it,
// except the description of the failure, is read from the log under the head's lock,
// so it never lags.
type DeadLetter struct {
	ID            uuid.UUID
	TenantID      uuid.UUID
	Stage         string
	Source        int64 // number of the event that failed
	SourceSubject events.Subject
	RawPosition   int64 // number of the recorded event

	Status   string      // FAILED, RETRYING, RESOLVED or DISCARDED
	Attempts int         // retries so far
	Parked   bool        // its last failure counted it as parked and was no rejection
	Requests int         // retries requested by bulks
	Waiting  bool        // the last of these is not yet executed
	AskedBy  []uuid.UUID // the bulks that requested a retry or discarded it
}

// Keyring finds keys.
type Keyring interface {
	// Find returns the key with the secret's SHA-256, and its tenant (nil for
	// operator keys); nil, nil if there is none. The result is at most a second old;
	// if that cannot be confirmed, Find returns ErrUnavailable.
	Find(ctx context.Context, secretHash [32]byte) (*domain.APIKey, *domain.Tenant, error)
}

// Page selects a page of a list: up to Limit entries after the id or key After
// ("" for the first page). Lists are in ascending order of id or key.
type Page struct {
	Limit int
	After string
}

// CatalogueReader reads the catalogue for authorized callers.
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

// Clock returns the time; the composition root passes time.Now.
type Clock func() time.Time
