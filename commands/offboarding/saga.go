package offboarding

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
)

// SagaOffboarding is the kind of the sagas that end tenants.
const SagaOffboarding = "offboarding"

// Steps of an offboarding.
const (
	stepSuspend     = "suspend"
	stepDrain       = "drain"  // end reservations, and wait until all usage counts
	stepClosePeriod = "close"  // close all periods with usage, and wait
	stepPush        = "push"   // wait until all pushes are delivered
	stepExport      = "export" // list what is kept
	stepArchive     = "archive"
	stepRevert      = "revert" // of a cancelled one
)

const (
	// offboardingWait is the time between two looks at what an offboarding waits for, and offboardingPushWait of pushes.
	offboardingWait     = time.Second
	offboardingPushWait = 5 * time.Second
	// holdsOfStep bounds the reservations that one run ends.
	holdsOfStep = 500
)

// OffboardingKind returns the kind of the sagas that end tenants.
func (c *Commands) OffboardingKind() commands.SagaKind {
	return commands.SagaKind{Name: SagaOffboarding, Steps: []string{stepSuspend, stepDrain, stepClosePeriod, stepPush, stepExport,
		stepArchive, stepRevert},
		Despite: []string{domain.MissingLetters}, Run: c.run}
}

// run runs a step: one transaction, which holds the head of the tenant's partition. A step whose result was lost finds its effects there,
// and does not repeat them.
func (c *Commands) run(ctx context.Context, s *domain.Saga) (result domain.SagaResult, err error) {
	var export exported
	switch s.Step {
	case stepDrain:
		err = c.endReservations(ctx, s)
	case stepExport:
		export.manifest, export.epoch, err = c.Store.Manifest(ctx, idOf(s), s.TenantID)
	}
	if err != nil {
		return result, err
	}
	err = c.Store.ChangeOffboarding(ctx, s.TenantID, func(tx Tx) (err error) {
		// the tenant may have a newer one, if an earlier run reverted this one and its result was lost
		o, err := tx.OffboardingByID(idOf(s))
		switch {
		case err != nil:
			return err
		case o == nil:
			result = domain.SagaFails("the offboarding " + s.Key + " does not exist")
		case o.State == domain.OffboardingArchived: // an earlier run archived it, and its result was lost; its dead letters are not retried
			missing, err := c.missingUsage(tx, o)
			result = domain.SagaDoneWithout(s.Waived(missing)...)
			return err
		case o.State == domain.OffboardingCancelled:
			result = domain.SagaReverted(o.CancelReason)
		case o.State == domain.OffboardingCancelling && s.Step != stepRevert:
			result = domain.SagaNext(stepRevert)
		default:
			result, err = c.runStep(tx, o, s, &export)
		}
		return err
	})
	return result, err
}

// idOf returns the id of the offboarding that a saga runs; Nil if its key is none.
func idOf(s *domain.Saga) uuid.UUID {
	id, _ := uuid.Parse(s.Key)
	return id
}

func (c *Commands) runStep(tx Tx, o *domain.Offboarding, s *domain.Saga, export *exported) (domain.SagaResult, error) {
	switch s.Step {
	case stepSuspend:
		return c.suspend(tx, o)
	case stepDrain:
		return c.drain(tx, o, s)
	case stepClosePeriod:
		return c.closePeriods(tx, o, s)
	case stepPush:
		return c.push(tx, o)
	case stepExport:
		return c.export(tx, o, export)
	case stepArchive:
		return c.archive(tx, o, s)
	}
	return c.revert(tx, o)
}

// reach records that a step ended, once, and continues with the next.
func (c *Commands) reach(tx Tx, o *domain.Offboarding, step, next, detail string) (domain.SagaResult, error) {
	if o.Reached(step) {
		return domain.SagaNext(next), nil
	}
	req := commands.ServiceRequest()
	return domain.SagaNext(next), c.step(tx, &req, o, step, events.OffboardingDone, detail)
}

// suspend suspends the tenant: its keys are refused.
func (c *Commands) suspend(tx Tx, o *domain.Offboarding) (domain.SagaResult, error) {
	if o.SuspendedAt == nil {
		now, err := tx.DatabaseTime()
		if err != nil {
			return domain.SagaResult{}, err
		}
		o.SuspendedAt = &now
		if err := c.setStatus(tx, o.TenantID, domain.TenantSuspended); err != nil {
			return domain.SagaResult{}, err
		}
	}
	return c.reach(tx, o, events.OffboardingSuspended, stepDrain, "")
}

func (c *Commands) setStatus(tx Tx, tenant uuid.UUID, status string) error {
	t, err := commands.LoadTenant(tx, tenant)
	if err != nil || t.Status == status {
		return err
	}
	t.Status = status
	req := commands.ServiceRequest()
	_, err = commands.AppendTenant(tx, &req, c.NewID(), c.now(), events.TenantChanged, t)
	return err
}

// endReservations releases reservations that are held. One that ended meanwhile is no failure.
func (c *Commands) endReservations(ctx context.Context, s *domain.Saga) error {
	held, err := c.Store.HeldReservations(ctx, s.TenantID, holdsOfStep)
	if err != nil {
		return err
	}
	for _, h := range held {
		by := commands.ServiceRequest().By
		by.TenantID, by.Residency = h.TenantID, h.Residency
		if _, err := c.Quotas.Release(ctx, by, h.Feature, h.ReservationID); err != nil && !errors.As(err, new(*domain.Error)) {
			return err
		}
	}
	return nil
}

// missingUsage returns the conditions that are missing until all usage of the tenant counts. The head of its partition is locked.
func (c *Commands) missingUsage(tx Tx, o *domain.Offboarding) ([]string, error) {
	last, err := tx.LastNumber(o.TenantID)
	if err != nil {
		return nil, err
	}
	return tx.MissingUsage(o.TenantID, last)
}

// drain waits until no reservation is held, and all usage recorded until then counts. No more is recorded: each append finds the tenant
// suspended. Usage that is parked or is being retried is awaited, too: of a month without other usage there is no close that would wait for
// it.
func (c *Commands) drain(tx Tx, o *domain.Offboarding, s *domain.Saga) (domain.SagaResult, error) {
	held, err := tx.HeldCount(o.TenantID)
	if err != nil || held > 0 {
		return domain.SagaWait(offboardingWait, "reservations"), err
	}
	if o.DrainedTo == 0 {
		if o.DrainedTo, err = tx.LastNumber(o.TenantID); err != nil {
			return domain.SagaResult{}, err
		}
		if err := tx.SaveOffboarding(*o); err != nil {
			return domain.SagaResult{}, err
		}
	}
	missing, err := tx.MissingUsage(o.TenantID, o.DrainedTo)
	if missing = s.Unwaived(missing); err != nil || len(missing) > 0 {
		return domain.SagaWait(offboardingWait, missing...), err
	}
	return c.reach(tx, o, events.OffboardingDrained, stepClosePeriod, "")
}

// toClose returns the history of a tenant, and its periods that are open or closing.
func (c *Commands) toClose(tx Tx, tenant uuid.UUID) (history domain.PeriodHistory, open, closing []string, err error) {
	used, err := tx.UsedPeriods(tenant)
	if err != nil {
		return history, nil, nil, err
	}
	periods, err := tx.Periods([]uuid.UUID{tenant})
	history = periods[tenant]
	open, closing = history.ToClose(used)
	return history, open, closing, err
}

// closePeriods requests the close of every open period with usage, and waits for all closes. They waive the conditions that the offboarding
// waives.
func (c *Commands) closePeriods(tx Tx, o *domain.Offboarding, s *domain.Saga) (domain.SagaResult, error) {
	history, open, closing, err := c.toClose(tx, o.TenantID)
	if err != nil {
		return domain.SagaResult{}, err
	}
	req, now := commands.ServiceRequest(), c.now()
	req.By.CorrelationID = c.NewID() // the trace of the closes and their pushes
	for _, key := range open {
		snapshot, early := history.ClosableAtEnd(key, now)
		in := billing.ClosePeriod{TenantID: o.TenantID, PeriodKey: key, Reason: o.Reason, Early: early,
			Despite: append([]string{}, s.Despite...)}
		if err := c.Periods.BeginClose(tx, &req, in, snapshot, now); err != nil {
			return domain.SagaResult{}, err
		}
		if early {
			o.Closed = append(o.Closed, domain.Closing{TenantID: o.TenantID, PeriodKey: key, Snapshot: snapshot})
		}
	}
	if len(open) > 0 {
		if err := tx.SaveOffboarding(*o); err != nil {
			return domain.SagaResult{}, err
		}
	}
	if waiting := append(closing, open...); len(waiting) > 0 {
		return domain.SagaWait(offboardingWait, named("close of ", waiting)...), nil
	}
	return c.reach(tx, o, events.OffboardingClosed, stepPush, strconv.Itoa(len(o.Closed))+" periods closed before their end")
}

func named(prefix string, list []string) (names []string) {
	for _, name := range list {
		names = append(names, prefix+name)
	}
	return names
}

// push waits until every push of the tenant is delivered.
func (c *Commands) push(tx Tx, o *domain.Offboarding) (domain.SagaResult, error) {
	waiting, err := tx.WaitingPushes(o.TenantID)
	if err != nil || len(waiting) > 0 {
		return domain.SagaWait(offboardingPushWait, waiting...), err
	}
	return c.reach(tx, o, events.OffboardingPushed, stepExport, "")
}

// exported is a manifest, which is made before the head is locked, and the epoch of the log that it lists; nil if the stored one lists all
// snapshots.
type exported struct {
	manifest *domain.OffboardingManifest
	epoch    int32
}

// export stores the manifest, whose hash the event has, unless a run whose result was lost stored it. A period that was closed since is
// missing in it. A manifest of another epoch is made again: a failover may have lost events that it lists.
func (c *Commands) export(tx Tx, o *domain.Offboarding, e *exported) (domain.SagaResult, error) {
	snapshots, err := tx.Snapshots(o.TenantID)
	if err != nil {
		return domain.SagaResult{}, err
	}
	if listed, err := o.Lists(snapshots); err != nil || listed {
		return domain.SagaNext(stepArchive), err
	}
	if epoch, err := tx.Epoch(o.TenantID); err != nil || e.manifest == nil || epoch != e.epoch {
		return domain.SagaNext(stepExport), err
	}
	m := e.manifest
	if !m.Lists(snapshots) {
		return domain.SagaNext(stepClosePeriod), nil
	}
	text, err := m.Encode()
	if err != nil {
		return domain.SagaResult{}, err
	}
	step, req := events.OffboardingExported, commands.ServiceRequest()
	o.Exports, o.Manifest = o.Exports+1, text
	key := events.KeyOffboarding(o.ID, step)
	if o.Exports > 1 {
		key += "/" + strconv.Itoa(o.Exports)
	}
	return domain.SagaNext(stepArchive), c.stepUnder(tx, &req, o, key, step, events.OffboardingDone, "sha256 "+domain.ManifestHash(text))
}

// archive cancels the subscription, revokes the keys, ends the webhooks and archives the tenant, in one transaction. If a period or a push
// is open again, or a snapshot is not in the manifest, the earlier steps run once more. Usage that is parked or is being retried may open a
// period at any moment: it is awaited.
func (c *Commands) archive(tx Tx, o *domain.Offboarding, s *domain.Saga) (domain.SagaResult, error) {
	missing, err := c.missingUsage(tx, o)
	if open := s.Unwaived(missing); err != nil || len(open) > 0 {
		return domain.SagaWait(offboardingWait, open...), err
	}
	if ready, err := c.archivable(tx, o); err != nil || !ready {
		return domain.SagaNext(stepClosePeriod), err
	}
	if err := c.endTenant(tx, o); err != nil {
		return domain.SagaResult{}, err
	}
	outcome := events.OffboardingDone
	if len(missing) > 0 { // all are waived
		outcome = events.OffboardingPartial
	}
	return domain.SagaDoneWithout(missing...), c.end(tx, o, domain.OffboardingArchived, events.OffboardingArchived, outcome,
		strings.Join(missing, ", "))
}

// endTenant cancels the subscription, revokes the keys, ends the webhooks and archives the tenant.
func (c *Commands) endTenant(tx Tx, o *domain.Offboarding) error {
	req := commands.ServiceRequest()
	catalogue := &catalogue.Commands{Now: c.Now, NewID: c.NewID}
	s, err := tx.InForce(o.TenantID)
	if err != nil {
		return err
	}
	if s != nil {
		s.Status = domain.SubscriptionCancelled
		if err := catalogue.SaveSubscription(tx, &req, s, events.SubscriptionChanged); err != nil {
			return err
		}
	}
	keys, err := tx.UsableKeys(o.TenantID)
	if err != nil {
		return err
	}
	for i := range keys {
		if err := catalogue.EndKey(tx, &req, &keys[i]); err != nil {
			return err
		}
	}
	if err := (&webhooks.Commands{Now: c.Now, NewID: c.NewID}).EndAll(tx, &req, o.TenantID, webhook.Archived); err != nil {
		return err
	}
	return c.setStatus(tx, o.TenantID, domain.TenantArchived)
}

func (c *Commands) archivable(tx Tx, o *domain.Offboarding) (bool, error) {
	_, open, closing, err := c.toClose(tx, o.TenantID)
	if err != nil || len(open)+len(closing) > 0 {
		return false, err
	}
	waiting, err := tx.WaitingPushes(o.TenantID)
	if err != nil || len(waiting) > 0 {
		return false, err
	}
	snapshots, err := tx.Snapshots(o.TenantID)
	if err != nil {
		return false, err
	}
	return o.Lists(snapshots)
}

func (c *Commands) end(tx Tx, o *domain.Offboarding, state, step, outcome, detail string) error {
	now, err := tx.DatabaseTime()
	if err != nil {
		return err
	}
	o.End(state, step, now)
	req := commands.ServiceRequest()
	return c.step(tx, &req, o, step, outcome, detail)
}

// revert reopens the periods that were closed before their end and activates the tenant, in one transaction.
func (c *Commands) revert(tx Tx, o *domain.Offboarding) (domain.SagaResult, error) {
	periods, err := tx.Periods([]uuid.UUID{o.TenantID})
	if err != nil {
		return domain.SagaResult{}, err
	}
	history := periods[o.TenantID]
	reopen, closing := o.ToReopen(&history)
	if len(closing) > 0 {
		return domain.SagaWait(offboardingWait, named("close of ", closing)...), nil
	}
	req, keys := commands.ServiceRequest(), []string{}
	for _, r := range reopen {
		if _, err := c.Periods.ReopenSnapshot(tx, &req, o.TenantID, r.PeriodKey, r.Snapshot,
			"the offboarding was cancelled: "+o.CancelReason); err != nil {
			return domain.SagaResult{}, err
		}
		keys = append(keys, r.PeriodKey)
	}
	if err := c.setStatus(tx, o.TenantID, domain.TenantActive); err != nil {
		return domain.SagaResult{}, err
	}
	return domain.SagaReverted(o.CancelReason), c.end(tx, o, domain.OffboardingCancelled, events.OffboardingReverted,
		events.OffboardingDone, "reopened: "+strings.Join(keys, ", "))
}
