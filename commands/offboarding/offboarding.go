// Package offboarding ends tenants, and erases the personal data of those that have ended.
package offboarding

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Commands ends tenants, in steps that can be cancelled until the last.
type Commands struct {
	Store   Store
	Quotas  *metering.Quotas // ends reservations
	Periods *billing.Periods // closes and reopens periods
	Now     commands.Clock
	NewID   func() uuid.UUID
	Wake    func() // wakes the runners of sagas of this instance; may be nil
	Logger  *slog.Logger
}

// Store runs changes of offboardings, and reads for them.
type Store interface {
	// ChangeOffboarding runs decide as commands.Store.Change does.
	ChangeOffboarding(ctx context.Context, tenant uuid.UUID, decide func(Tx) error) error
	// HeldReservations lists reservations of a tenant that are held.
	HeldReservations(ctx context.Context, tenant uuid.UUID, limit int) ([]metering.DueReservation, error)
	// Manifest lists the kept data of the tenant of an offboarding, of one snapshot of the database, and returns the log's epoch in it. It
	// is nil, and the log is not read, if the offboarding's manifest lists all snapshots of periods. It is an error if a figure differs
	// from the hash that was recorded when it was frozen.
	Manifest(ctx context.Context, offboarding, tenant uuid.UUID) (m *domain.OffboardingManifest, epoch int32, err error)
}

// Tx is the transaction of a step of an offboarding.
type Tx interface {
	catalogue.Tx
	commands.DatabaseClock
	webhooks.EndTx
	billing.PeriodTx
	commands.SagaTx
	commands.LogEpochs
	// OffboardingByID returns an offboarding, also if it is not its tenant's last one; nil if it does not exist.
	OffboardingByID(id uuid.UUID) (*domain.Offboarding, error)
	SaveOffboarding(o domain.Offboarding) error
	// LastNumber returns the last number of the tenant's partition.
	LastNumber(tenant uuid.UUID) (int64, error)
	// MissingUsage returns the conditions of a close that are missing until all usage of the tenant up to a number counts, or never will:
	// verdicts that are not folded, open dead letters, and their retries.
	MissingUsage(tenant uuid.UUID, upTo int64) ([]string, error)
	// HeldCount counts the reservations that are held.
	HeldCount(tenant uuid.UUID) (int64, error)
	// UsedPeriods lists the periods of a tenant with usage.
	UsedPeriods(tenant uuid.UUID) ([]string, error)
	// WaitingPushes names pushes of a tenant that are not delivered, and closed periods whose pushes are not stored yet.
	WaitingPushes(tenant uuid.UUID) ([]string, error)
	// Snapshots lists all snapshots of a tenant's periods.
	Snapshots(tenant uuid.UUID) ([]domain.Closing, error)
	// UsableKeys lists the keys of a tenant that are not revoked.
	UsableKeys(tenant uuid.UUID) ([]domain.APIKey, error)
}

// Reader reads offboardings.
type Reader interface {
	// LastOffboarding returns a tenant's last offboarding; nil without one.
	LastOffboarding(ctx context.Context, tenant uuid.UUID) (*domain.Offboarding, error)
}

func (c *Commands) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

func (c *Commands) changeOf(ctx context.Context, tenant uuid.UUID) commands.Transaction[Tx] {
	return func(decide func(Tx) error) error { return c.Store.ChangeOffboarding(ctx, tenant, decide) }
}

func (c *Commands) wake() {
	if c.Wake != nil {
		c.Wake()
	}
}

// Start requests the end of a tenant.
func (c *Commands) Start(ctx context.Context, req commands.Request, tenant uuid.UUID, reason string) (domain.Offboarding, error) {
	if refusal := domain.CheckReason(reason); refusal != nil {
		return domain.Offboarding{}, refusal
	}
	o, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx Tx) (domain.Offboarding, error) {
		if _, err := commands.Changeable(tx, tenant); err != nil {
			return domain.Offboarding{}, err
		}
		now, err := tx.DatabaseTime()
		if err != nil {
			return domain.Offboarding{}, err
		}
		actor := req.By.ActsAs()
		o := domain.Offboarding{ID: c.NewID(), TenantID: tenant, State: domain.OffboardingRunning, Reason: reason,
			Actor: actor.Type + "/" + actor.ID, RequestedAt: now}
		saga, _, err := tx.StartSaga(domain.SagaStart{ID: c.NewID(), Kind: SagaOffboarding, TenantID: tenant, Key: o.ID.String(),
			FirstStep: stepSuspend, Deadline: domain.OffboardingDeadline})
		if err != nil {
			return o, err
		}
		o.SagaID = saga.ID
		return o, c.step(tx, &req, &o, events.OffboardingRequested, events.OffboardingDone, reason)
	})
	if err == nil {
		c.wake()
	}
	return o, err
}

// Cancel requests that the effects of an offboarding are reverted: the tenant is active again, and periods that it closed before their end
// are open.
func (c *Commands) Cancel(ctx context.Context, req commands.Request, tenant uuid.UUID, reason string) (domain.Offboarding, error) {
	if refusal := domain.CheckReason(reason); refusal != nil {
		return domain.Offboarding{}, refusal
	}
	o, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx Tx) (domain.Offboarding, error) {
		if _, err := commands.LoadTenant(tx, tenant); err != nil {
			return domain.Offboarding{}, err
		}
		o, err := tx.Offboarding(tenant)
		if err != nil || o == nil {
			return domain.Offboarding{}, commands.OrRefuse(err, "offboarding_not_found", "", "the tenant was never offboarded")
		}
		actor := req.By.ActsAs()
		by := actor.Type + "/" + actor.ID
		requested, refusal := o.Cancel(reason, by)
		if refusal != nil {
			return *o, refusal
		}
		if !requested {
			return *o, nil
		}
		if err := c.retry(tx, o, reason, by); err != nil {
			return *o, err
		}
		return *o, c.step(tx, &req, o, events.OffboardingCancelled, events.OffboardingDone, reason)
	})
	if err == nil {
		c.wake()
	}
	return o, err
}

// retry lets the saga run at once.
func (c *Commands) retry(tx Tx, o *domain.Offboarding, reason, by string) error {
	s, err := tx.Saga(o.SagaID)
	if err != nil || s == nil {
		return err
	}
	if refusal := s.Retry(reason, by, nil); refusal != nil {
		return refusal
	}
	return tx.SaveRetry(s)
}

// step saves an offboarding with the event of a step that ended.
func (c *Commands) step(tx Tx, req *commands.Request, o *domain.Offboarding, step, outcome, detail string) error {
	return c.stepUnder(tx, req, o, events.KeyOffboarding(o.ID, step), step, outcome, detail)
}

func (c *Commands) stepUnder(tx Tx, req *commands.Request, o *domain.Offboarding, key, step, outcome, detail string) error {
	p, err := req.Event(c.NewID(), c.now(), o.TenantID, events.OffboardingStepped, events.OffboardingStep{OffboardingID: o.ID, Step: step,
		Outcome: outcome, Detail: detail})
	if err != nil {
		return err
	}
	p.DedupeKey = key
	if _, err := commands.AppendOne(tx, p); err != nil {
		return err
	}
	if step != events.OffboardingCancelled { // the step from which it was cancelled stays known
		o.Step = step
	}
	return tx.SaveOffboarding(*o)
}
