package commands

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// TenantReader reads tenants.
type TenantReader interface {
	Tenant(ctx context.Context, id uuid.UUID) (*domain.Tenant, error)
}

// LoadTenant loads a tenant, and refuses an unknown id.
func LoadTenant(tx Tenants, id uuid.UUID) (*domain.Tenant, error) {
	t, err := tx.Tenant(id)
	if err == nil && t == nil {
		err = domain.Refuse("tenant_not_found", "", "no such tenant")
	}
	return t, err
}

// AppendTenant appends an event of a tenant, under the data residency that the tenant has from here on.
func AppendTenant(tx Tx, req *Request, id uuid.UUID, at time.Time, subject events.Subject, t *domain.Tenant) (events.Position, error) {
	p, err := req.Event(id, at, t.ID, subject, events.Tenant(*t))
	if err != nil {
		return events.Position{}, err
	}
	p.Residency = t.DataResidency
	positions, err := tx.Append(p)
	if err != nil {
		return events.Position{}, err
	}
	return positions[0], nil
}

// Offboardings finds offboardings in a transaction.
type Offboardings interface {
	// Offboarding returns the tenant's last offboarding.
	Offboarding(tenant uuid.UUID) (*domain.Offboarding, error)
}

// RefuseOffboarding refuses a change of a tenant that is being offboarded, or is archived.
func RefuseOffboarding(tx Offboardings, tenant uuid.UUID) error {
	if tenant == events.Platform {
		return nil
	}
	o, err := tx.Offboarding(tenant)
	if err != nil {
		return err
	}
	if refusal := o.Blocks(); refusal != nil {
		return refusal
	}
	return nil
}

// Changeable loads a tenant that is not being offboarded.
func Changeable(tx interface {
	Tenants
	Offboardings
}, tenant uuid.UUID) (*domain.Tenant, error) {
	t, err := LoadTenant(tx, tenant)
	if err == nil {
		err = RefuseOffboarding(tx, tenant)
	}
	return t, err
}

// RefuseTest refuses to bill a test tenant.
func RefuseTest(pointer, instead string) error {
	return domain.Refuse("tenant_is_test", pointer,
		"the tenant is a test tenant, which is not billed: %s. Create a live tenant for usage to bill", instead)
}
