package billing

import (
	"context"
	"log/slog"
	"math/big"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
)

// Pushes sends amounts that are due to a billing provider, once each, and compares the provider's totals with them.
type Pushes struct {
	Store    PushStore
	Provider Provider // nil: pushes are stored, and wait
	Now      commands.Clock
	NewID    func() uuid.UUID
	Wake     func()             // wakes the runner of pushes of this instance; may be nil
	Observed func(push.Outcome) // is called for each attempt; may be nil
	Logger   *slog.Logger
	Settle   time.Duration // the time after a delivery until the provider's total includes it
}

// Provider counts pushed amounts.
type Provider interface {
	// Send sends a push once, in the trace of the event that closed its period. Every outcome is a result.
	Send(ctx context.Context, p push.Push, of events.TracedEvent) push.Result
	// Total returns the amount that the provider counted for a customer's meter event with timestamps in [from, to), in UTC.
	Total(ctx context.Context, customer, event string, from, to time.Time) (*big.Int, error)
}

// PushStore runs changes of pushes, and reads for them. All times are of the database's clock.
type PushStore interface {
	// ChangePushes runs decide as commands.Store.Change does.
	ChangePushes(ctx context.Context, tenant uuid.UUID, decide func(PushTx) error) error
	// UpdatePush changes a push in a transaction that locks only its row, and returns it; nil: not found. If change reports false, the
	// push is not saved.
	UpdatePush(ctx context.Context, id uuid.UUID, change func(p *push.Push, now time.Time) bool) (*push.Push, error)
	// OpenPushes returns the pushes of a tenant's period that are not delivered.
	OpenPushes(ctx context.Context, tenant uuid.UUID, periodKey string) (open []push.Push, now time.Time, err error)
	// PeriodEvent returns the event of a change of a period.
	PeriodEvent(ctx context.Context, of domain.Closing, change string) (events.TracedEvent, error)
	// NotePushes sets the last error of the pending pushes of a period.
	NotePushes(ctx context.Context, tenant uuid.UUID, periodKey, reason string) error
	// PushWindows lists the windows with a push in the last push.Oldest that were not compared since a time.
	PushWindows(ctx context.Context, since time.Time) ([]push.Window, error)
	// PushSums returns the pushes of a window. A push of the last settle is on its way.
	PushSums(ctx context.Context, w push.Window, settle time.Duration) (push.Sums, error)
}

// PushTx is the transaction of a change of pushes.
type PushTx interface {
	commands.Tx
	commands.DatabaseClock
	commands.Offboardings
	commands.SagaStarter
	Feature(lookupKey string) (*domain.Feature, error)
	Periods(tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error)
	// RecentlyClosed returns the closed periods of a tenant whose end is not older than push.Oldest, or that were pushed before.
	RecentlyClosed(tenant uuid.UUID) ([]domain.Closing, error)
	// Due returns the features of a closed period of which an amount is due.
	Due(c domain.Closing) ([]push.Due, error)
	AddPush(p push.Push) error
	// Push loads and locks a push.
	Push(id uuid.UUID) (p *push.Push, now time.Time, err error)
	SavePush(p push.Push) error
	// NeverSent loads and locks a tenant's pushes that were never sent, in the order in which they were stored.
	NeverSent(tenant uuid.UUID) ([]push.Push, error)
	// PushesOf returns the pushes of a feature in a period, in the order in which they were stored.
	PushesOf(tenant uuid.UUID, feature, periodKey string) ([]push.Push, error)
	// RetryPushes lets the open sagas of a tenant's pushes run at once.
	RetryPushes(tenant uuid.UUID, reason, actor string) error
	SaveComparison(w push.Window, total, delivered *big.Int) error
	// Billed reports whether a tenant has billing, or a push exists.
	Billed() (bool, error)
	// Today returns the date of UTC.
	Today() (string, error)
}

// PushReader reads pushes.
type PushReader interface {
	Push(ctx context.Context, id uuid.UUID) (*push.Push, error)
	Pushes(ctx context.Context, q PushQuery) ([]push.Push, error)
}

// PushQuery selects a page of pushes, the newest first.
type PushQuery struct {
	TenantID         *uuid.UUID // nil: any
	State, PeriodKey string     // "": any
	commands.Page
}

func (c *Pushes) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

func (c *Pushes) wake() {
	if c.Wake != nil {
		c.Wake()
	}
}

func (c *Pushes) changeOf(ctx context.Context, tenant uuid.UUID) commands.Transaction[PushTx] {
	return func(decide func(PushTx) error) error { return c.Store.ChangePushes(ctx, tenant, decide) }
}

// customerForm is the form of a customer's id at a provider.
var customerForm = regexp.MustCompile(`^[!-~]{1,255}$`)

// SetBilling sets a tenant's customer at a billing provider; nil removes it. The closed periods of the last 35 days are pushed to a new
// one, as far as no push of them exists, and so are stored pushes that were never sent. A credit stays with the customer that was charged.
func (c *Pushes) SetBilling(ctx context.Context, req commands.Request, tenant uuid.UUID, to *events.Billing) (domain.Tenant, error) {
	if to != nil {
		if err := commands.OneOf(to.Provider, "provider_invalid", "/provider", events.ProviderStripe); err != nil {
			return domain.Tenant{}, err
		}
		if !customerForm.MatchString(to.Customer) {
			return domain.Tenant{}, domain.Refuse("customer_invalid", "/customer",
				"customer must be 1 to 255 printable ASCII characters without space, e.g. cus_NffrFeUfNV2Hib")
		}
	}
	changed, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx PushTx) (domain.Tenant, error) {
		t, err := commands.Changeable(tx, tenant)
		if err != nil {
			return domain.Tenant{}, err
		}
		if to != nil && t.Mode == domain.ModeTest {
			return domain.Tenant{}, commands.RefuseTest("", "it gets no billing customer, and its amounts are not delivered")
		}
		before := *t
		if t.Billing = to; t.SameBilling(&before) {
			return before, nil
		}
		at, err := commands.AppendTenant(tx, &req, c.NewID(), c.now(), events.TenantChanged, t)
		if err != nil || to == nil {
			return *t, err
		}
		if err := readdressNeverSent(tx, t); err != nil {
			return *t, err
		}
		periods, err := tx.RecentlyClosed(tenant)
		if err != nil {
			return *t, err
		}
		for _, p := range periods {
			if err := startPush(tx, c.NewID, p, pushOfBilling, at.Number); err != nil {
				return *t, err
			}
		}
		return *t, nil
	})
	if err == nil {
		c.wake()
	}
	return changed, err
}

// Retry lets a push be sent again at once. The table keeps the last reason and actor.
func (c *Pushes) Retry(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (push.Push, error) {
	return c.operate(ctx, req, id, reason, "retried", func(tx PushTx, p *push.Push, actor string, now time.Time) error {
		t, err := commands.LoadTenant(tx, p.TenantID)
		if err != nil {
			return err
		}
		pushes, err := tx.PushesOf(p.TenantID, p.Feature, p.PeriodKey)
		if err != nil {
			return err
		}
		if err := readdress(tx, p, t, pushes); err != nil {
			return err
		}
		if refusal := p.Retry(reason, actor, now); refusal != nil {
			return refusal
		}
		return nil
	})
}

// readdressNeverSent lets pushes that were never sent follow the tenant's customer: first the charges, since a credit stays if the other
// charges cover it.
func readdressNeverSent(tx PushTx, t *domain.Tenant) error {
	list, err := tx.NeverSent(t.ID)
	if err != nil {
		return err
	}
	slices.SortStableFunc(list, func(a, b push.Push) int { return b.Amount.Sign() - a.Amount.Sign() })
	for i := range list {
		before := list[i].Address
		pushes, err := tx.PushesOf(t.ID, list[i].Feature, list[i].PeriodKey)
		if err != nil {
			return err
		}
		if err := readdress(tx, &list[i], t, pushes); err != nil {
			return err
		}
		if list[i].Address == before {
			continue
		}
		if err := tx.SavePush(list[i]); err != nil {
			return err
		}
	}
	return nil
}

// readdress lets a push that the provider has not counted follow the tenant's customer and the feature's meter: those that it has may be
// wrong. Pushes are those of its feature and period.
func readdress(tx PushTx, p *push.Push, t *domain.Tenant, pushes []push.Push) error {
	f, err := tx.Feature(p.Feature)
	if err != nil || f == nil {
		return err
	}
	p.Readdress(t.Billing, f.BillingEvent, push.ChargesOf(pushes))
	return nil
}

// Resolve ends the doubt about a push by an operator's knowledge.
func (c *Pushes) Resolve(ctx context.Context, req commands.Request, id uuid.UUID, delivered bool, reason string) (push.Push, error) {
	return c.operate(ctx, req, id, reason, "resolved", func(_ PushTx, p *push.Push, actor string, now time.Time) error {
		if refusal := p.Resolve(delivered, reason, actor, now); refusal != nil {
			return refusal
		}
		return nil
	})
}

func (c *Pushes) operate(ctx context.Context, req commands.Request, id uuid.UUID, reason, what string,
	decide func(PushTx, *push.Push, string, time.Time) error) (push.Push, error) {
	if refusal := domain.CheckReason(reason); refusal != nil {
		return push.Push{}, refusal
	}
	known, err := c.Store.UpdatePush(ctx, id, func(*push.Push, time.Time) bool { return false })
	if err != nil || known == nil {
		return push.Push{}, commands.OrRefuse(err, "push_not_found", "", "Stripe delivery not found")
	}
	actor := req.By.ActsAs()
	by, done := actor.Type+"/"+actor.ID, false
	push, err := commands.Change(c.changeOf(ctx, known.TenantID), req, func(tx PushTx) (push.Push, error) {
		p, now, err := tx.Push(id)
		if err != nil || p == nil {
			return push.Push{}, commands.OrRefuse(err, "push_not_found", "", "Stripe delivery not found")
		}
		before := *p
		if err := decide(tx, p, by, now); err != nil {
			return *p, err
		}
		done = true
		if err := c.savePush(tx, &req, &before, p, events.ResolvedByOperator, reason); err != nil {
			return *p, err
		}
		return *p, tx.RetryPushes(p.TenantID, reason, by)
	})
	if err != nil || !done {
		return push, err
	}
	c.Logger.InfoContext(ctx, "an operator "+what+" a Stripe delivery", "push", id, "key", push.Key, "state", push.State, "actor", by,
		"reason", reason)
	c.wake()
	return push, nil
}

// savePush saves a push with the event of its change: a delivery or a failure.
func (c *Pushes) savePush(tx PushTx, req *commands.Request, before, p *push.Push, resolution, reason string) error {
	if err := tx.SavePush(*p); err != nil {
		return err
	}
	switch {
	case p.State == push.StateDelivered && before.State != p.State:
		return c.recordPush(tx, req, p, events.PushDelivered, "delivered", events.Push{PushID: p.ID, Provider: p.Provider, Key: p.Key,
			Identifier: p.Identifier,
			Feature:    p.Feature, PeriodKey: p.PeriodKey, Snapshot: p.Snapshot, Amount: p.Amount.String(), Attempt: p.Attempts,
			Resolution: resolution, Reason: reason})
	case p.Failures > before.Failures:
		return c.recordPush(tx, req, p, events.PushFailed, failureOf(p), events.FailedPush{PushID: p.ID, Provider: p.Provider, Key: p.Key,
			Identifier: p.Identifier,
			Feature:    p.Feature, PeriodKey: p.PeriodKey, Snapshot: p.Snapshot, Amount: p.Amount.String(), Attempt: p.Attempts,
			Code:   p.Code,
			Reason: p.LastError})
	}
	return nil
}

func (c *Pushes) recordPush(tx PushTx, req *commands.Request, p *push.Push, subject events.Subject, end string, payload any) error {
	e, err := req.Event(c.NewID(), c.now(), p.TenantID, subject, payload)
	if err != nil {
		return err
	}
	e.DedupeKey = events.KeyPush(p.ID, end)
	_, err = commands.AppendOne(tx, e)
	return err
}

// Reconcile requests a comparison of the provider's totals with the delivered amounts.
func (c *Pushes) Reconcile(ctx context.Context, req commands.Request) (domain.Saga, error) {
	saga, err := commands.Change(c.changeOf(ctx, events.Platform), req, func(tx PushTx) (domain.Saga, error) {
		if billed, err := tx.Billed(); err != nil || !billed {
			return domain.Saga{}, commands.OrRefuse(err, "billing_not_configured", "",
				"no tenant has billing, and no amount was delivered; set it: PUT /tenants/{tenantId}/billing")
		}
		id := c.NewID()
		s, _, err := tx.StartSaga(domain.SagaStart{ID: id, Kind: SagaBillingCompare, Key: "request/" + id.String(), FirstStep: stepCompare,
			Deadline: compareDeadline})
		if err != nil {
			return domain.Saga{}, err
		}
		return *s, nil
	})
	if err == nil {
		c.wake()
	}
	return saga, err
}
