package catalogue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Thresholds changes the thresholds of tenants. Each change is an event of the catalogue, so that the next group of requests knows it.
type Thresholds struct {
	Store ThresholdStore
	Now   commands.Clock
	NewID func() uuid.UUID
}

// ThresholdStore runs changes of thresholds.
type ThresholdStore interface {
	// ChangeThresholds runs decide as commands.Store.Change does.
	ChangeThresholds(ctx context.Context, tenant uuid.UUID, decide func(ThresholdTx) error) error
}

// ThresholdTx is the transaction of a change of a threshold.
type ThresholdTx interface {
	commands.Tx
	commands.Offboardings
	// Feature loads a feature of the catalogue.
	Feature(lookupKey string) (*domain.Feature, error)
	// Threshold loads a threshold of a tenant; nil also for a removed one.
	Threshold(tenant, id uuid.UUID) (*domain.DefinedThreshold, error)
	// CountThresholds counts the thresholds of a tenant that are not removed.
	CountThresholds(tenant uuid.UUID) (int, error)
}

// ThresholdReader reads thresholds.
type ThresholdReader interface {
	// Threshold returns a threshold of a tenant; nil also for a removed one.
	Threshold(ctx context.Context, tenant, id uuid.UUID) (*domain.DefinedThreshold, error)
	Thresholds(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]domain.DefinedThreshold, error)
}

// NewThreshold is a request to define a threshold. It has a percentage or an amount.
type NewThreshold struct {
	Feature         *string // nil: each feature
	Percent, Amount *int64
}

// check refuses a request that is wrong whatever the tenant is.
func (n *NewThreshold) check() error {
	switch {
	case (n.Percent == nil) == (n.Amount == nil):
		return domain.Refuse("threshold_invalid", "", "a threshold has either percent or amount")
	case n.Percent != nil && (*n.Percent < 1 || *n.Percent > domain.MaxThresholdPercent):
		return domain.Refuse("percent_invalid", "/percent", "percent must be an integer from 1 to %d", domain.MaxThresholdPercent)
	case n.Amount != nil && (*n.Amount < 1 || *n.Amount > maxLimit):
		return domain.Refuse("amount_invalid", "/amount", "amount must be an integer from 1 to %d", int64(maxLimit))
	}
	return nil
}

func (c *Thresholds) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

func (c *Thresholds) changeOf(ctx context.Context, tenant uuid.UUID) commands.Transaction[ThresholdTx] {
	return func(decide func(ThresholdTx) error) error { return c.Store.ChangeThresholds(ctx, tenant, decide) }
}

// Create defines a threshold. It concerns the used amount at its position, and usage that is counted after it.
func (c *Thresholds) Create(ctx context.Context, req commands.Request, tenant uuid.UUID,
	in NewThreshold) (domain.DefinedThreshold, error) {
	if err := in.check(); err != nil {
		return domain.DefinedThreshold{}, err
	}
	return commands.Change(c.changeOf(ctx, tenant), req, func(tx ThresholdTx) (t domain.DefinedThreshold, err error) {
		t.Threshold = domain.Threshold{TenantID: tenant, Feature: in.Feature, Percent: in.Percent, Amount: in.Amount}
		if err := checkThreshold(tx, &t.Threshold); err != nil {
			return t, err
		}
		t.ID, t.CreatedAt = c.NewID(), c.now()
		t.Position, err = commands.AppendEvent(tx, &req, c.NewID(), t.CreatedAt, tenant, events.ThresholdChanged, t.Event(false))
		return t, err
	})
}

// checkThreshold refuses a threshold that the tenant cannot have.
func checkThreshold(tx ThresholdTx, t *domain.Threshold) error {
	if _, err := commands.Changeable(tx, t.TenantID); err != nil {
		return err
	}
	if t.Feature != nil {
		f, err := tx.Feature(*t.Feature)
		switch {
		case err != nil:
			return err
		case f == nil:
			return domain.Refuse("feature_not_found", "/feature", "no such feature; define it with PUT /features/{lookupKey}")
		case f.Type == domain.FeatureBoolean:
			return domain.Refuse("not_entitled", "/feature", "%s is BOOLEAN: it is granted or not, and counts no usage", *t.Feature)
		}
	}
	n, err := tx.CountThresholds(t.TenantID)
	if err == nil && n >= domain.MaxThresholds {
		err = domain.Refuse("thresholds_limit", "", "the tenant has %d thresholds, which is the limit; remove one first", n)
	}
	return err
}

// Remove removes a threshold: usage that is counted behind crosses it no longer.
func (c *Thresholds) Remove(ctx context.Context, req commands.Request, tenant, id uuid.UUID) error {
	_, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx ThresholdTx) (none struct{}, err error) {
		t, err := tx.Threshold(tenant, id)
		if err != nil || t == nil {
			return none, commands.OrRefuse(err, "threshold_not_found", "", "no such threshold")
		}
		if _, err := commands.Changeable(tx, tenant); err != nil {
			return none, err
		}
		_, err = commands.AppendEvent(tx, &req, c.NewID(), c.now(), tenant, events.ThresholdChanged, t.Event(true))
		return none, err
	})
	return err
}
