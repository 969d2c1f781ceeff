package billing

import (
	"context"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
)

// SagaBillingCompare is the kind of the sagas that compare the provider's totals with the delivered amounts.
const SagaBillingCompare = "billing_compare"

const stepCompare = "compare"

const (
	// compareDeadline is the time after which a comparison ends without the windows that could not be compared.
	compareDeadline = 6 * time.Hour
	// compareWait is the time until windows are compared that could not be compared: pushes are on their way, or the provider failed.
	compareWait = 5 * time.Minute
)

// CompareKind returns the kind of the sagas that compare.
func (c *Pushes) CompareKind() commands.SagaKind {
	return commands.SagaKind{Name: SagaBillingCompare, Steps: []string{stepCompare}, Run: c.runCompare}
}

// runCompare compares all windows that were not compared since the saga began.
func (c *Pushes) runCompare(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
	if c.Provider == nil && s.State == domain.SagaPartial {
		return domain.SagaDoneWithout(noProvider), nil
	}
	if c.Provider == nil {
		return domain.SagaWait(compareWait, noProvider), nil
	}
	windows, err := c.Store.PushWindows(ctx, s.CreatedAt)
	if err != nil {
		return domain.SagaResult{}, err
	}
	var missing []string
	for _, w := range windows {
		open, err := c.compare(ctx, w)
		if err != nil {
			open = err.Error()
		}
		if ctx.Err() != nil {
			return domain.SagaResult{}, ctx.Err()
		}
		if open != "" && len(missing) < missingPushes {
			missing = append(missing, w.Customer+" "+w.Event+" "+w.Month+": "+open)
		}
	}
	switch {
	case len(missing) == 0:
		return domain.SagaDone(), nil
	case s.State == domain.SagaPartial:
		return domain.SagaDoneWithout(missing...), nil
	}
	return domain.SagaWait(compareWait, missing...), nil
}

// compare compares a window, and resolves its pushes whose result stays unknown if the total decides it. It returns why the window cannot
// be compared now.
func (c *Pushes) compare(ctx context.Context, w push.Window) (open string, err error) {
	before, err := c.Store.PushSums(ctx, w, c.Settle)
	if err != nil {
		return "", err
	}
	if before.OnTheWay > 0 {
		return "Stripe deliveries are on their way", nil
	}
	from, to, _ := domain.PeriodBounds(w.Month)
	calling, cancel := context.WithTimeout(ctx, pushSending)
	defer cancel()
	total, err := c.Provider.Total(calling, w.Customer, w.Event, from, to)
	if err != nil {
		return "", err
	}
	after, err := c.Store.PushSums(ctx, w, c.Settle)
	if err != nil {
		return "", err
	}
	if !after.Equal(&before) {
		return "Stripe deliveries are on their way", nil
	}
	delivered := after.Delivered
	if counted, decided := push.OfTotal(total, after.Delivered, after.Unknown); decided {
		if err := c.resolve(ctx, after.Undecided, counted); err != nil {
			return "", err
		}
		if counted {
			delivered = total
		}
	}
	return "", c.recordComparison(ctx, w, total, delivered)
}

// resolve ends the doubt about pushes by the provider's total.
func (c *Pushes) resolve(ctx context.Context, list []push.Push, counted bool) error {
	for i := range list {
		tenant := list[i].TenantID
		err := c.conclude(ctx, &list[i], events.ResolvedByTotals, func(p *push.Push, now time.Time) bool {
			if p.State == push.StateDelivered || !p.Undecided(now) {
				return false
			}
			p.SettleByTotal(counted, now)
			return true
		})
		if err != nil {
			return err
		}
		c.Logger.WarnContext(ctx, "the provider's total resolved a Stripe delivery", "push", list[i].ID, "key", list[i].Key, "delivered",
			counted)
		if err := c.Store.ChangePushes(ctx, tenant, func(tx PushTx) error {
			return tx.RetryPushes(tenant, "the provider's total", "service/meterplex-sagas")
		}); err != nil {
			return err
		}
	}
	return nil
}

// recordComparison saves a comparison; a difference is an event.
func (c *Pushes) recordComparison(ctx context.Context, w push.Window, total, delivered *big.Int) error {
	difference := new(big.Int).Sub(total, delivered)
	req := commands.ServiceRequest()
	if difference.Sign() != 0 {
		c.Logger.ErrorContext(ctx, "the provider's total differs from the delivered amounts", "customer", w.Customer, "event", w.Event,
			"month", w.Month,
			"total", total, "delivered", delivered, "difference", difference)
	}
	return c.Store.ChangePushes(ctx, w.TenantID, func(tx PushTx) error {
		if err := tx.SaveComparison(w, total, delivered); err != nil || difference.Sign() == 0 {
			return err
		}
		_, err := commands.AppendEvent(tx, &req, c.NewID(), c.now(), w.TenantID, events.PushCompared,
			events.ComparedPushes{Provider: w.Provider, Customer: w.Customer,
				Feature: w.Feature, PeriodKey: w.Month, Total: total.String(), Delivered: delivered.String(),
				Difference: difference.String()})
		return err
	})
}

// StartComparison starts the comparison of today, by the database's clock. Any number of instances may call it: the date is the saga's key.
func (c *Pushes) StartComparison(ctx context.Context) error {
	started := false
	err := c.Store.ChangePushes(ctx, events.Platform, func(tx PushTx) error {
		billed, err := tx.Billed()
		if err != nil || !billed {
			return err
		}
		day, err := tx.Today()
		if err != nil {
			return err
		}
		_, started, err = tx.StartSaga(domain.SagaStart{ID: c.NewID(), Kind: SagaBillingCompare, TenantID: uuid.Nil, Key: day,
			FirstStep: stepCompare, Deadline: compareDeadline})
		return err
	})
	if err == nil && started {
		c.wake()
	}
	return err
}
