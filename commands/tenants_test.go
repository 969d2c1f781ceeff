package commands

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// tenantTx fakes the port of tenants.
type tenantTx struct {
	unfaked
	*memory
}

func (tx *tenantTx) SaveTenant(t domain.Tenant) error {
	tx.tenants[t.ID] = t
	return nil
}

func newTenants() (*Catalogue, *tenantTx) {
	tx := &tenantTx{memory: newMemory()}
	return catalogueOf(tx.memory, tx), tx
}

func TestBadTenantsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		in            CreateTenant
		code, pointer string
	}{
		"name":      {CreateTenant{Name: "", Class: "small"}, "name_invalid", "/name"},
		"class":     {CreateTenant{Name: "A", Class: "huge"}, "class_invalid", "/class"},
		"residency": {CreateTenant{Name: "A", Class: "small", DataResidency: "EU"}, "data_residency_invalid", "/dataResidency"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newTenants()
			_, err := catalogue.CreateTenant(t.Context(), Request{By: operator}, c.in)
			refusedWith(t, err, c.code, c.pointer)
			_, err = catalogue.ChangeTenant(t.Context(), Request{By: operator}, activeTenant, ChangeTenant{Name: &c.in.Name, Class: &c.in.Class, DataResidency: ptr(c.in.DataResidency + "X")})
			if err == nil || tx.tenants[activeTenant].Class != "small" {
				t.Errorf("changed to %+v, %v", tx.tenants[activeTenant], err)
			}
			if tx.succeeded(t, nil, 0); len(tx.tenants) != 2 {
				t.Errorf("%d tenants", len(tx.tenants))
			}
		})
	}
	catalogue, tx := newTenants()
	_, err := catalogue.ChangeTenant(t.Context(), Request{By: operator}, activeTenant, ChangeTenant{Status: ptr("GONE")})
	refusedWith(t, err, "status_invalid", "/status")
	_, err = catalogue.ChangeTenant(t.Context(), Request{By: operator}, uuid.New(), ChangeTenant{})
	refusedWith(t, err, "tenant_not_found", "")
	tx.succeeded(t, nil, 0)
}

// A new tenant's event belongs to the tenant, and is appended in a change of the
// platform.
func TestATenantIsCreatedOnceForEachKey(t *testing.T) {
	for residency, want := range map[string]string{"": "eu-west-1", "us-west-2": "us-west-2"} {
		catalogue, tx := newTenants()
		in := CreateTenant{Name: "A", Class: "medium", DataResidency: residency}
		id := uuid.UUID{15: 1} // the first id
		answer, event := tx.once(t, caused{subject: events.TenantCreated, tenant: id, residency: want}, func(req Request) (any, error) {
			return catalogue.CreateTenant(t.Context(), req, in)
		})
		made := domain.Tenant{ID: id, Name: "A", Class: "medium", Status: domain.TenantActive, DataResidency: want, CreatedAt: stored}
		if answer != made || tx.tenants[id] != made || payload[events.Tenant](t, &event) != events.Tenant(made) || tx.held[0] != events.Platform {
			t.Errorf("%+v, saved %+v, under the head of %s", answer, tx.tenants[id], tx.held[0])
		}
	}
}

// An answer that was stored before the introduction of residencies lacks the member.
func TestAnOldAnswerHasNoResidency(t *testing.T) {
	catalogue, tx := newTenants()
	tx.answers[operator.KeyID.String()+"/k"] = Answer{[32]byte{1}, []byte(`{"name":"Old"}`)}
	got, err := catalogue.CreateTenant(t.Context(), keyed(1), CreateTenant{Name: "Old", Class: "small"})
	if tx.succeeded(t, err, 0); got.Name != "Old" || got.DataResidency != events.ResidencyUnspecified {
		t.Errorf("%+v", got)
	}
}

func TestATenantIsChangedOnceForEachKey(t *testing.T) {
	catalogue, tx := newTenants()
	want := tx.tenants[activeTenant]
	want.Status, want.DataResidency = domain.TenantSuspended, "us-west-2"
	answer, event := tx.once(t, caused{subject: events.TenantChanged, tenant: activeTenant, residency: "us-west-2"}, func(req Request) (any, error) {
		return catalogue.ChangeTenant(t.Context(), req, activeTenant, ChangeTenant{Status: ptr(domain.TenantSuspended), DataResidency: ptr("us-west-2")})
	})
	if answer != want || tx.tenants[activeTenant] != want || payload[events.Tenant](t, &event) != events.Tenant(want) || tx.held[0] != activeTenant {
		t.Errorf("%+v, saved %+v, under the head of %s", answer, tx.tenants[activeTenant], tx.held[0])
	}
}

func TestAnEqualTenantIsNoChange(t *testing.T) {
	catalogue, tx := newTenants()
	got, err := catalogue.ChangeTenant(t.Context(), Request{By: operator}, activeTenant, ChangeTenant{Name: ptr("Alice")})
	if tx.succeeded(t, err, 0); got != tx.tenants[activeTenant] {
		t.Errorf("%+v", got)
	}
}
