package catalogue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// CreateSubscription is a request for a subscription; Status "" is ACTIVE, and StartsAt nil is now.
type CreateSubscription struct {
	Plan     string
	Status   string
	StartsAt *time.Time
}

// PricesCurrent moves the grants of a subscription on to the current versions of their prices.
const PricesCurrent = "current"

// ChangeSubscription is a request for a change. With a plan it takes a new snapshot; Prices is nil or PricesCurrent.
type ChangeSubscription struct {
	Status, Plan, Prices *string
}

func checkStatus(status string) error {
	return commands.OneOf(status, "status_invalid", "/status", domain.SubscriptionActive, domain.SubscriptionTrialing,
		domain.SubscriptionPastDue, domain.SubscriptionCancelled, domain.SubscriptionExpired)
}

// CreateSubscription subscribes a tenant to a snapshot of a plan.
func (c *Commands) CreateSubscription(ctx context.Context, req commands.Request, tenant uuid.UUID,
	in CreateSubscription) (domain.Subscription, error) {
	byDefault(&in.Status, domain.SubscriptionActive)
	if err := checkStatus(in.Status); err != nil {
		return domain.Subscription{}, err
	}
	s := domain.Subscription{ID: c.NewID(), TenantID: tenant, Plan: in.Plan, Status: in.Status, CreatedAt: c.now()}
	if s.StartsAt = s.CreatedAt; in.StartsAt != nil {
		s.StartsAt = in.StartsAt.UTC()
	}
	return commands.Change(c.changing(ctx, tenant), req, func(tx Tx) (domain.Subscription, error) {
		if _, err := commands.Changeable(tx, tenant); err != nil {
			return s, err
		}
		if err := snapshot(tx, &s); err != nil {
			return s, err
		}
		return s, c.SaveSubscription(tx, &req, &s, events.SubscriptionCreated)
	})
}

// ChangeSubscription changes the status, applies the present state of a plan, or the current versions of its prices.
func (c *Commands) ChangeSubscription(ctx context.Context, req commands.Request, tenant, id uuid.UUID,
	in ChangeSubscription) (domain.Subscription, error) {
	if in.Status != nil {
		if err := checkStatus(*in.Status); err != nil {
			return domain.Subscription{}, err
		}
	}
	if in.Prices != nil {
		if err := commands.OneOf(*in.Prices, "prices_invalid", "/prices", PricesCurrent); err != nil {
			return domain.Subscription{}, err
		}
	}
	return commands.Change(c.changing(ctx, tenant), req, func(tx Tx) (domain.Subscription, error) {
		s, err := tx.Subscription(id)
		if err == nil && (s == nil || s.TenantID != tenant) {
			err = domain.Refuse("subscription_not_found", "", "no such subscription")
		}
		if err != nil {
			return domain.Subscription{}, err
		}
		moved := false
		if in.Prices != nil && in.Plan == nil {
			if moved, err = movePrices(tx, s.Entitlements); err != nil {
				return *s, err
			}
		}
		if in.Plan == nil && !moved && (in.Status == nil || *in.Status == s.Status) {
			return *s, nil
		}
		if err := commands.RefuseOffboarding(tx, tenant); err != nil {
			return *s, err
		}
		set(&s.Status, in.Status)
		if in.Plan != nil {
			s.Plan = *in.Plan
			if err := snapshot(tx, s); err != nil {
				return *s, err
			}
		}
		return *s, c.SaveSubscription(tx, &req, s, events.SubscriptionChanged)
	})
}

// snapshot copies all grants of the plan, so that no verdict needs the plan.
func snapshot(tx Tx, s *domain.Subscription) error {
	plan, err := tx.Plan(s.Plan)
	if err != nil {
		return err
	}
	if plan == nil {
		return domain.Refuse("plan_not_found", "/plan", "no such plan; define it with PUT /plans/{key}")
	}
	s.Entitlements = make([]domain.Grant, 0, len(plan.Entitlements))
	for _, e := range plan.Entitlements {
		f, err := tx.Feature(e.Feature)
		if err != nil {
			return err
		}
		if f == nil {
			return domain.Refuse("entitlements_invalid", "/plan", "the plan names a feature that is not defined")
		}
		s.Entitlements = append(s.Entitlements, domain.Grant{Entitlement: e, Type: f.Type, Unit: f.Unit})
	}
	_, err = movePrices(tx, s.Entitlements)
	return err
}

// movePrices names the current versions of the prices in grants, and reports whether one changed.
func movePrices(tx Tx, grants []domain.Grant) (moved bool, err error) {
	for i := range grants {
		g := &grants[i]
		if g.Price == "" {
			continue
		}
		p, err := tx.Price(g.Price)
		if err != nil {
			return false, err
		}
		if p == nil {
			return false, domain.Refuse("price_not_found", "/plan", "the plan names the price %s, which is not defined", g.Price)
		}
		moved = moved || p.Version != g.PriceVersion
		g.PriceVersion = p.Version
	}
	return moved, nil
}

// SaveSubscription records a change of a subscription. The tenant has at most one that accepts usage.
func (c *Commands) SaveSubscription(tx Tx, req *commands.Request, s *domain.Subscription, subject events.Subject) error {
	inForce, err := tx.InForce(s.TenantID)
	if err != nil {
		return err
	}
	if s.AcceptsUsage() && inForce != nil && inForce.ID != s.ID {
		return domain.Refuse("subscription_exists", "/status", "the tenant has an %s subscription (%s); end it first", inForce.Status,
			inForce.ID)
	}
	_, err = c.record(tx, req, s.TenantID, subject, events.Subscription(*s))
	return err
}
