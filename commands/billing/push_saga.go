package billing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
)

// SagaBillingPush is the kind of the sagas that push what is due of a closed period.
const SagaBillingPush = "billing_push"

// Steps of a push.
const (
	stepPlan = "plan" // store the pushes of what is due
	stepSend = "send" // until all pushes of the period are delivered
)

// Origins of a push, the first part of the key of its saga.
const (
	pushOfClose      = "close"
	pushOfAdjustment = "adjust"
	pushOfBilling    = "billing"
)

const (
	// pushLook is the longest time between two looks at pushes that are sent again by themselves.
	pushLook = time.Minute
	// pushIdle is the time between two looks at pushes that wait for an operator, whose retry wakes the saga.
	pushIdle = 5 * time.Minute
	// pushesOfStep bounds the pushes of one run of a step, and missingPushes the names of pushes that a saga shows.
	pushesOfStep  = 100
	missingPushes = 20
	// pushSending bounds an attempt; pushSaving the time in which its result is saved while the instance stops.
	pushSending = push.Attempt / 2
	pushSaving  = 5 * time.Second
)

// noProvider is the last error of pushes that wait for the provider's key.
const noProvider = "METERPLEX_STRIPE_KEY is not set on an instance with the role biller"

// pushStarter is the part of a transaction that starts the saga of a push.
type pushStarter interface {
	commands.SagaStarter
	commands.Tenants
}

// startPush starts the saga that pushes the amounts due of a closed period, if the tenant has billing. The number makes its key unique; 0:
// the snapshot does.
func startPush(tx pushStarter, newID func() uuid.UUID, of domain.Closing, origin string, number int64) error {
	t, err := commands.LoadTenant(tx, of.TenantID)
	if err != nil || t.Billing == nil {
		return err
	}
	key := origin + "/" + closeKey(of.PeriodKey, of.Snapshot)
	if number > 0 {
		key += "/" + strconv.FormatInt(number, 10)
	}
	_, _, err = tx.StartSaga(domain.SagaStart{ID: newID(), Kind: SagaBillingPush, TenantID: of.TenantID, Key: key, FirstStep: stepPlan,
		Deadline: push.Deadline})
	return err
}

// pushOf returns the period that a saga pushes.
func pushOf(s *domain.Saga) (of domain.Closing, err error) {
	parts := strings.Split(s.Key, "/")
	if len(parts) < 3 || !slices.Contains([]string{pushOfClose, pushOfAdjustment, pushOfBilling}, parts[0]) {
		return of, fmt.Errorf("the key %q of a push names no period", s.Key)
	}
	snapshot, err := strconv.Atoi(parts[2])
	if err != nil {
		return of, fmt.Errorf("the key %q of a push names no snapshot", s.Key)
	}
	return domain.Closing{TenantID: s.TenantID, PeriodKey: parts[1], Snapshot: snapshot}, nil
}

// PushKind returns the kind of the sagas that push.
func (c *Pushes) PushKind() commands.SagaKind {
	return commands.SagaKind{Name: SagaBillingPush, Steps: []string{stepPlan, stepSend}, Run: c.runPush}
}

func (c *Pushes) runPush(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
	of, err := pushOf(s)
	if err != nil {
		return domain.SagaResult{}, err
	}
	if s.Step == stepSend {
		return c.send(ctx, of)
	}
	billed := false
	err = c.Store.ChangePushes(ctx, of.TenantID, func(tx PushTx) error {
		t, err := commands.LoadTenant(tx, of.TenantID)
		if billed = err == nil && t.Billing != nil; !billed {
			return err
		}
		return c.plan(tx, t.Billing, of)
	})
	if err != nil || billed {
		return domain.SagaNext(stepSend), err
	}
	// Without billing it sends the pushes that are stored. It ends here if there are none, so that verify does not expect any.
	open, _, err := c.Store.OpenPushes(ctx, of.TenantID, of.PeriodKey)
	if err != nil || len(open) > 0 {
		return domain.SagaNext(stepSend), err
	}
	return domain.SagaDone(), nil
}

// plan stores the pushes of the amount due of each feature. The head of the tenant's partition is locked: each decision and reopening is
// before or after it. Of a reopened period no amount is due until it is closed again.
func (c *Pushes) plan(tx PushTx, to *events.Billing, of domain.Closing) error {
	periods, err := tx.Periods([]uuid.UUID{of.TenantID})
	if err != nil {
		return err
	}
	history := periods[of.TenantID]
	last := history.Last(of.PeriodKey)
	if last.State() != domain.StateClosed {
		return nil
	}
	of.Snapshot = last.Snapshot
	due, err := tx.Due(of)
	if err != nil || len(due) == 0 {
		return err
	}
	now, err := tx.DatabaseTime()
	if err != nil {
		return err
	}
	for i := range due {
		d, pushes := &due[i], []push.Push(nil)
		if d.Credit() {
			if pushes, err = tx.PushesOf(of.TenantID, d.Feature, of.PeriodKey); err != nil {
				return err
			}
		}
		for _, p := range push.Plan(c.NewID, of, d, push.ChargesOf(pushes), to, now) {
			if err := tx.AddPush(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// send sends the pushes of a period that are due, and waits until all are delivered. No transaction is open while the provider is called.
func (c *Pushes) send(ctx context.Context, of domain.Closing) (domain.SagaResult, error) {
	open, now, err := c.Store.OpenPushes(ctx, of.TenantID, of.PeriodKey)
	if err != nil || len(open) == 0 {
		return domain.SagaDone(), err
	}
	if c.Provider == nil {
		return domain.SagaWait(pushLook, namesOf(open)...), c.Store.NotePushes(ctx, of.TenantID, of.PeriodKey, noProvider)
	}
	sent := 0
	for i := range open {
		if p := &open[i]; p.NextAt == nil || p.NextAt.After(now) || sent == pushesOfStep {
			continue
		}
		result, err := c.attempt(ctx, &open[i])
		if err != nil {
			return domain.SagaResult{}, err
		}
		if result.Outcome == push.KeyRefused { // the next one would be refused, too
			return domain.SagaWait(pushLook, namesOf(open)...), c.Store.NotePushes(ctx, of.TenantID, of.PeriodKey, result.Reason)
		}
		sent++
	}
	if open, now, err = c.Store.OpenPushes(ctx, of.TenantID, of.PeriodKey); err != nil || len(open) == 0 {
		return domain.SagaDone(), err
	}
	wait := pushIdle
	for i := range open {
		if next := open[i].NextAt; next != nil {
			wait = max(0, min(wait, pushLook, next.Sub(now)))
		}
	}
	return domain.SagaWait(wait, namesOf(open)...), nil
}

func namesOf(open []push.Push) (names []string) {
	for i := range open[:min(len(open), missingPushes)] {
		names = append(names, open[i].Key+" "+open[i].State)
	}
	return names
}

// attempt sends a push once, and returns the answer. The attempt is stored before the call, its result after it: between them the provider
// may have counted the push.
func (c *Pushes) attempt(ctx context.Context, known *push.Push) (result push.Result, err error) {
	of, err := c.Store.PeriodEvent(ctx, known.Closing(), domain.PeriodClosed)
	if err != nil {
		return result, err
	}
	begun := false
	calling, cancel := context.WithTimeout(ctx, pushSending) // until then no other attempt begins, and no operator resolves the push
	defer cancel()
	p, err := c.Store.UpdatePush(ctx, known.ID, func(p *push.Push, now time.Time) bool {
		begun = p.Begin(now)
		return begun
	})
	if err != nil || p == nil {
		return result, err
	}
	if !begun { // it is not sent any more, or another instance was faster
		return result, c.conclude(ctx, p, "", (*push.Push).Stop)
	}
	result = c.Provider.Send(calling, *p, of)
	if c.Observed != nil {
		c.Observed(result.Outcome)
	}
	if result.Outcome != push.Delivered {
		c.Logger.WarnContext(ctx, "a Stripe delivery failed", "push", p.ID, "key", p.Key, "attempt", p.Attempts, "outcome", result.Outcome,
			"code", result.Code, "reason", result.Reason)
	}
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushSaving)
	defer cancel()
	return result, c.conclude(saving, p, "", func(now *push.Push, at time.Time) bool { return now.Answered(result, p.Attempts, at) })
}

// conclude changes a push with the event of its change, in one transaction.
func (c *Pushes) conclude(ctx context.Context, of *push.Push, resolution string, decide func(p *push.Push, now time.Time) bool) error {
	closed, err := c.Store.PeriodEvent(ctx, of.Closing(), domain.PeriodClosed)
	if err != nil {
		return err
	}
	req := commands.FollowUp(closed)
	return c.Store.ChangePushes(ctx, of.TenantID, func(tx PushTx) error {
		p, now, err := tx.Push(of.ID)
		if err != nil || p == nil {
			return err
		}
		before := *p
		if !decide(p, now) {
			return nil
		}
		return c.savePush(tx, &req, &before, p, resolution, "")
	})
}

func failureOf(p *push.Push) string { return "failed/" + strconv.Itoa(p.Failures) }

// StartPushes starts the sagas of the snapshots whose adjustments a decision at a position approved.
func StartPushes(tx pushStarter, newID func() uuid.UUID, of []domain.Closing, at events.Position) error {
	for _, c := range of {
		if err := startPush(tx, newID, c, pushOfAdjustment, at.Number); err != nil {
			return err
		}
	}
	return nil
}
