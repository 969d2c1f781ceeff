package commands

import (
	"cmp"
	"context"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// TenantTx is the transaction of a change of a tenant.
type TenantTx interface {
	Tx
	SaveTenant(t domain.Tenant) error
}

func (c *Catalogue) changeOfTenant(ctx context.Context, tenant uuid.UUID) transaction[TenantTx] {
	return func(decide func(TenantTx) error) error {
		return c.Store.ChangeCatalogue(ctx, tenant, func(tx CatalogueTx) error { return decide(tx) })
	}
}

// CreateTenant is a request for a new tenant.
type CreateTenant struct {
	Name          string
	Class         string // small, medium or large
	DataResidency string // "": the deployment's region
}

// ChangeTenant is a request for a change; nil leaves a member unchanged.
type ChangeTenant struct {
	Name, Class, Status, DataResidency *string
}

// TenantClasses lists the classes of tenants.
func TenantClasses() []string { return []string{"small", "medium", "large"} }

func checkTenant(t *domain.Tenant) error {
	if err := checkName(t.Name); err != nil {
		return err
	}
	if err := oneOf(t.Class, "class_invalid", "/class", TenantClasses()...); err != nil {
		return err
	}
	if !events.IsResidency(t.DataResidency) {
		return refuse("data_residency_invalid", "/dataResidency", "dataResidency must match ^[a-z][a-z0-9-]{0,31}$, e.g. eu-central-1")
	}
	return oneOf(t.Status, "status_invalid", "/status", domain.TenantActive, domain.TenantSuspended)
}

// CreateTenant makes an ACTIVE tenant. It is a change of the platform, so that
// repetitions of one Idempotency-Key wait for each other. The event belongs to the
// tenant.
func (c *Catalogue) CreateTenant(ctx context.Context, req Request, in CreateTenant) (domain.Tenant, error) {
	t := domain.Tenant{
		ID: c.NewID(), Name: in.Name, Class: in.Class, Status: domain.TenantActive,
		DataResidency: cmp.Or(in.DataResidency, c.Region, events.ResidencyUnspecified), CreatedAt: c.now(),
	}
	if err := checkTenant(&t); err != nil {
		return domain.Tenant{}, err
	}
	created, err := change(c.changeOfTenant(ctx, events.Platform), req, func(tx TenantTx) (domain.Tenant, error) {
		if err := tx.SaveTenant(t); err != nil {
			return t, err
		}
		_, err := c.record(tx, &req, t.ID, events.TenantCreated, events.Tenant(t))
		return t, err
	})
	// Answers stored before the introduction of residencies lack the member.
	created.DataResidency = cmp.Or(created.DataResidency, events.ResidencyUnspecified)
	return created, err
}

// ChangeTenant changes a tenant; the keys of a SUSPENDED one are refused.
func (c *Catalogue) ChangeTenant(ctx context.Context, req Request, id uuid.UUID, in ChangeTenant) (domain.Tenant, error) {
	return change(c.changeOfTenant(ctx, id), req, func(tx TenantTx) (domain.Tenant, error) {
		t, err := loadTenant(tx, id)
		if err != nil {
			return domain.Tenant{}, err
		}
		before := *t
		set(&t.Name, in.Name)
		set(&t.Class, in.Class)
		set(&t.Status, in.Status)
		set(&t.DataResidency, in.DataResidency)
		if err := checkTenant(t); err != nil || *t == before {
			return *t, err
		}
		if err := tx.SaveTenant(*t); err != nil {
			return *t, err
		}
		_, err = c.record(tx, &req, id, events.TenantChanged, events.Tenant(*t))
		return *t, err
	})
}

func set(field, to *string) {
	if to != nil {
		*field = *to
	}
}

func loadTenant(tx Tenants, id uuid.UUID) (*domain.Tenant, error) {
	t, err := tx.Tenant(id)
	if err == nil && t == nil {
		err = refuse("tenant_not_found", "", "no such tenant")
	}
	return t, err
}
