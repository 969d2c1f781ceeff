// Package catalogue changes the catalogue, on which verdicts and limits depend: features, plans, prices, tenants, their keys,
// subscriptions and thresholds.
package catalogue

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Commands changes tenants, keys, features, plans, prices and subscriptions. Each change
// is an event in the log, appended in the transaction of the change. Each noun has
// its own file of methods.
type Commands struct {
	Store     Store
	Now       commands.Clock
	NewID     func() uuid.UUID
	NewSecret func() [32]byte // 256 random bits
	Region    string          // of the deployment: the default data residency of new tenants
}

// Store runs changes of the catalogue.
type Store interface {
	// ChangeCatalogue runs decide as commands.Store.Change does.
	ChangeCatalogue(ctx context.Context, tenant uuid.UUID, decide func(Tx) error) error
}

// Tx is the transaction of a change of the catalogue. An event that it appends changes the rows of its noun.
type Tx interface {
	commands.Tx
	commands.Offboardings
	ExternalIDs
	Key(id uuid.UUID) (*domain.APIKey, error)
	// SaveSecret saves the hash of a new key's secret.
	SaveSecret(key uuid.UUID, hash []byte) error
	Feature(lookupKey string) (*domain.Feature, error)
	// GroupingSince returns the time from which changed keys of a feature apply: the given one, or later.
	GroupingSince(feature string, since time.Time) (time.Time, error)
	Plan(key string) (*domain.Plan, error)
	Price(key string) (*domain.Price, error)
	Subscription(id uuid.UUID) (*domain.Subscription, error)
	// InForce returns the tenant's subscription that is ACTIVE or TRIALING.
	InForce(tenant uuid.UUID) (*domain.Subscription, error)
}

// Reader reads the catalogue for authorized callers.
type Reader interface {
	// Version reads the version of an entity. Read it before the entity, so that its tag is never newer.
	Version(ctx context.Context, of commands.Ref) (string, error)
	// Instances lists the instances of the last day.
	Instances(ctx context.Context, p commands.Page) ([]commands.Instance, error)
	Tenants(ctx context.Context, p commands.Page) ([]domain.Tenant, error)
	Tenant(ctx context.Context, id uuid.UUID) (*domain.Tenant, error)
	// FindTenants lists the tenants whose name or one of whose external ids contains the text, or whose id begins with it, without regard
	// to case.
	FindTenants(ctx context.Context, text string, p commands.Page) ([]domain.Tenant, error)
	TenantOfExternalID(ctx context.Context, externalID string) (*domain.Tenant, error)
	Keys(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]domain.APIKey, error)
	Features(ctx context.Context, p commands.Page) ([]domain.Feature, error)
	Feature(ctx context.Context, lookupKey string) (*domain.Feature, error)
	Plans(ctx context.Context, p commands.Page) ([]domain.Plan, error)
	Plan(ctx context.Context, key string) (*domain.Plan, error)
	Prices(ctx context.Context, p commands.Page) ([]domain.Price, error)
	Price(ctx context.Context, key string) (*domain.Price, error)
	// PriceVersions lists the versions of a price behind a number.
	PriceVersions(ctx context.Context, key string, after int64, limit int) ([]domain.Price, error)
	Subscriptions(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]domain.Subscription, error)
	Subscription(ctx context.Context, tenant, id uuid.UUID) (*domain.Subscription, error)
	// SubscriptionsOfPlan lists the subscriptions of a plan, of all tenants; with older only those that have not ended, and whose snapshot
	// differs from the plan.
	SubscriptionsOfPlan(ctx context.Context, plan string, older bool, p commands.Page) ([]domain.Subscription, error)
}

// now returns the time with the precision of the log.
func (c *Commands) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

// record appends a change as an event of the tenant.
func (c *Commands) record(tx commands.Tx, req *commands.Request, tenant uuid.UUID, subject events.Subject, payload any) (events.Position,
	error) {
	return commands.AppendEvent(tx, req, c.NewID(), c.now(), tenant, subject, payload)
}

// changing runs a change of the catalogue of a tenant, or of the platform.
func (c *Commands) changing(ctx context.Context, tenant uuid.UUID) commands.Transaction[Tx] {
	return func(decide func(Tx) error) error { return c.Store.ChangeCatalogue(ctx, tenant, decide) }
}

// put is the outcome of a request that creates a value or replaces it.
type put[T any] struct {
	Value   T
	Created bool
}

// define records the event of a value that a request puts under its key. next returns the value, by the old one (nil: the key is new), and
// the payload of its event, nil if the value stays the same; or it refuses the change.
func define[T any](ctx context.Context, c *Commands, req commands.Request, subject events.Subject, load func(Tx) (*T, error),
	next func(tx Tx, old *T) (value T, payload any, err error)) (T, bool, error) {
	done, err := commands.Change(c.changing(ctx, events.Platform), req, func(tx Tx) (put[T], error) {
		old, err := load(tx)
		if err != nil {
			return put[T]{}, err
		}
		value, payload, err := next(tx, old)
		if err == nil && payload != nil {
			_, err = c.record(tx, &req, events.Platform, subject, payload)
		}
		return put[T]{value, old == nil}, err
	})
	return done.Value, done.Created, err
}

// same reports whether two values of a noun have the same members.
func same[T any](a, b T) bool {
	x, fault := json.Marshal(a)
	y, err := json.Marshal(b)
	return fault == nil && err == nil && bytes.Equal(x, y)
}
