package offboarding

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// SagaErasure is the kind of the sagas that erase personal data.
const SagaErasure = "erasure"

// Steps of an erasure.
const (
	stepTenant = "tenant" // the name, the external ids and the metadata
	stepLog    = "log"    // the events, batch by batch
	stepModels = "models" // the read models, batch by batch, once they have folded all events of the tenant; then the kept answers
	stepErased = "erased" // the end
)

// erasureWait is the time between two looks at the consumers that an erasure waits for.
const erasureWait = time.Second

// Erasures erase the personal data of archived tenants.
type Erasures struct {
	Store  ErasureStore
	Files  ErasureFiles // keeps erasures outside the database; nil: none does
	Now    commands.Clock
	NewID  func() uuid.UUID
	Wake   func() // wakes the runners of sagas of this instance; may be nil
	Logger *slog.Logger
}

// ErasureStore runs changes of erasures.
type ErasureStore interface {
	// ChangeErasure runs decide as commands.Store.Change does.
	ChangeErasure(ctx context.Context, tenant uuid.UUID, decide func(ErasureTx) error) error
	// EraseLog erases the next events of a running erasure, and reports whether events remain.
	EraseLog(ctx context.Context, erasure uuid.UUID) (more bool, err error)
	// EraseModels erases the next rows of read models, and reports whether rows remain. If a consumer has not folded all erased events, or
	// the relay or a replay not published them, it erases no row, and returns their names.
	EraseModels(ctx context.Context, erasure uuid.UUID) (waiting []string, more bool, err error)
}

// ErasureTx is the transaction of a change of an erasure.
type ErasureTx interface {
	commands.Tx
	catalogue.ExternalIDs
	commands.DatabaseClock
	commands.SagaStarter
	// Erasure returns the tenant's erasure; nil without one.
	Erasure(tenant uuid.UUID) (*domain.Erasure, error)
	SaveErasure(e domain.Erasure) error
}

// ErasureReader reads erasures.
type ErasureReader interface {
	// Erasure returns a tenant's erasure; nil without one.
	Erasure(ctx context.Context, tenant uuid.UUID) (*domain.Erasure, error)
	// Erasures lists by the tenant's id.
	Erasures(ctx context.Context, p commands.Page) ([]domain.Erasure, error)
}

// ErasureKind returns the kind of the sagas that erase personal data.
func (c *Erasures) ErasureKind() commands.SagaKind {
	return commands.SagaKind{Name: SagaErasure, Steps: []string{stepTenant, stepLog, stepModels, stepErased}, Run: c.run}
}

// Start requests the erasure of an archived tenant's personal data. A second request returns the first.
func (c *Erasures) Start(ctx context.Context, req commands.Request, tenant uuid.UUID, reason string) (domain.Erasure, error) {
	if refusal := domain.CheckReason(reason); refusal != nil {
		return domain.Erasure{}, refusal
	}
	in := func(decide func(ErasureTx) error) error { return c.Store.ChangeErasure(ctx, tenant, decide) }
	e, err := commands.Change(in, req, func(tx ErasureTx) (domain.Erasure, error) {
		t, err := commands.LoadTenant(tx, tenant)
		if err != nil {
			return domain.Erasure{}, err
		}
		if t.Status != domain.TenantArchived {
			return domain.Erasure{}, domain.Refuse("tenant_not_archived", "",
				"the tenant is %s; offboard it first: POST /tenants/{tenantId}/offboard", t.Status)
		}
		if e, err := tx.Erasure(tenant); err != nil {
			return domain.Erasure{}, err
		} else if e != nil {
			return *e, nil
		}
		return c.begin(tx, &req, tenant, reason)
	})
	if err == nil && c.Wake != nil {
		c.Wake()
	}
	return e, err
}

func (c *Erasures) begin(tx ErasureTx, req *commands.Request, tenant uuid.UUID, reason string) (domain.Erasure, error) {
	now, err := tx.DatabaseTime()
	if err != nil {
		return domain.Erasure{}, err
	}
	actor := req.By.ActsAs()
	e := domain.Erasure{ID: c.NewID(), TenantID: tenant, State: domain.ErasureRunning, Reason: reason, Actor: actor.Type + "/" + actor.ID,
		RequestedAt: now}
	saga, _, err := tx.StartSaga(domain.SagaStart{ID: c.NewID(), Kind: SagaErasure, TenantID: tenant, Key: e.ID.String(),
		FirstStep: stepTenant, Deadline: domain.ErasureDeadline})
	if err != nil {
		return e, err
	}
	e.SagaID = saga.ID
	requested, err := c.step(tx, req, &e, events.ErasureStep{ErasureID: e.ID, Step: events.ErasureRequested, Reason: reason})
	if err != nil {
		return e, err
	}
	e.UpTo = requested.Number
	return e, tx.SaveErasure(e)
}

func (c *Erasures) step(tx ErasureTx, req *commands.Request, e *domain.Erasure, step events.ErasureStep) (events.Position, error) {
	p, err := req.Event(c.NewID(), c.Now().UTC().Truncate(time.Microsecond), e.TenantID, events.ErasureStepped, step)
	if err != nil {
		return events.Position{}, err
	}
	p.DedupeKey = events.KeyErasure(e.ID, step.Step)
	return commands.AppendOne(tx, p)
}

// run runs a step: one transaction. Steps of batches run until no row is left. A step whose result was lost finds its effects, and does
// not repeat them.
func (c *Erasures) run(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
	id, err := uuid.Parse(s.Key)
	if err != nil {
		return domain.SagaFails("the erasure " + s.Key + " has no id"), nil
	}
	switch s.Step {
	case stepTenant:
		if err := c.saveFile(ctx, s); err != nil {
			return domain.SagaResult{}, err
		}
		return domain.SagaNext(stepLog), c.change(ctx, s, c.eraseTenant)
	case stepLog:
		more, err := c.Store.EraseLog(ctx, id)
		if err != nil || more {
			return domain.SagaNext(stepLog), err
		}
		return domain.SagaNext(stepModels), nil
	case stepModels:
		waiting, more, err := c.Store.EraseModels(ctx, id)
		switch {
		case err != nil || len(waiting) > 0:
			return domain.SagaWait(erasureWait, waiting...), err
		case more:
			return domain.SagaNext(stepModels), nil
		}
		return domain.SagaNext(stepErased), nil
	}
	return domain.SagaDone(), c.change(ctx, s, c.end)
}

// saveFile saves the erasure outside the database, before anything is erased.
func (c *Erasures) saveFile(ctx context.Context, s *domain.Saga) error {
	if c.Files == nil {
		return nil
	}
	var file ErasureFile
	err := c.change(ctx, s, func(_ ErasureTx, e *domain.Erasure) error {
		file = fileOf(e)
		return nil
	})
	if err != nil || file.TenantID == uuid.Nil {
		return err
	}
	return c.Files.Save(file)
}

// change runs a step of a running erasure, under the lock of the head.
func (c *Erasures) change(ctx context.Context, s *domain.Saga, decide func(ErasureTx, *domain.Erasure) error) error {
	return c.Store.ChangeErasure(ctx, s.TenantID, func(tx ErasureTx) error {
		e, err := tx.Erasure(s.TenantID)
		if err == nil && (e == nil || e.ID.String() != s.Key) {
			err = fmt.Errorf("the erasure %s does not exist", s.Key)
		}
		if err != nil || e.State != domain.ErasureRunning {
			return err
		}
		return decide(tx, e)
	})
}

// eraseTenant erases the data about the tenant in the catalogue. Readers of the catalogue see that as a change of the tenant.
func (c *Erasures) eraseTenant(tx ErasureTx, e *domain.Erasure) error {
	t, err := commands.LoadTenant(tx, e.TenantID)
	if err != nil || t.ErasedAt != nil {
		return err
	}
	t.Name, t.ExternalIDs, t.Metadata, t.ErasedAt = events.ErasedName, nil, nil, &e.RequestedAt
	req := commands.ServiceRequest()
	if _, err := commands.AppendTenant(tx, &req, c.NewID(), c.Now().UTC().Truncate(time.Microsecond), events.TenantChanged, t); err != nil {
		return err
	}
	_, err = tx.SaveExternalIDs(t.ID, nil)
	return err
}

func (c *Erasures) end(tx ErasureTx, e *domain.Erasure) error {
	now, err := tx.DatabaseTime()
	if err != nil {
		return err
	}
	e.State, e.EndedAt = domain.ErasureErased, &now
	if err := tx.SaveErasure(*e); err != nil {
		return err
	}
	req := commands.ServiceRequest()
	_, err = c.step(tx, &req, e, events.ErasureStep{ErasureID: e.ID, Step: events.ErasureEnded, Rewritten: e.Rewritten})
	return err
}
