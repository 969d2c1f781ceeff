package commands

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// tenantTx fakes the port of tenants.
type tenantTx struct {
	unfaked
	*memory
	externalIDs map[string]uuid.UUID
	policies    []savedPolicy
}

// savedPolicy is a policy and the position that it holds from.
type savedPolicy struct {
	tenant domain.Tenant
	from   int64
}

func (tx *tenantTx) SavePolicy(t domain.Tenant, from int64) error {
	tx.policies = append(tx.policies, savedPolicy{t, from})
	return nil
}

func (tx *tenantTx) SaveTenant(t domain.Tenant) error {
	tx.tenants[t.ID] = t
	return nil
}

// SaveExternalIDs is called after the append, as its port requires.
func (tx *tenantTx) SaveExternalIDs(tenant uuid.UUID, ids []string) (string, error) {
	if len(tx.appended) == 0 {
		return "", errors.New("external ids are saved before the event is appended")
	}
	for _, id := range ids {
		if holder, ok := tx.externalIDs[id]; ok && holder != tenant {
			return id, nil
		}
	}
	maps.DeleteFunc(tx.externalIDs, func(_ string, holder uuid.UUID) bool { return holder == tenant })
	for _, id := range ids {
		tx.externalIDs[id] = tenant
	}
	return "", nil
}

func newTenants() (*Catalogue, *tenantTx) {
	tx := &tenantTx{memory: newMemory(), externalIDs: map[string]uuid.UUID{}}
	transacted(tx.memory, &tx.externalIDs)
	return catalogueOf(tx.memory, tx), tx
}

func TestBadTenantsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		in            CreateTenant
		code, pointer string
	}{
		"name":        {CreateTenant{Name: "", Class: "small"}, "name_invalid", "/name"},
		"class":       {CreateTenant{Name: "A", Class: "huge"}, "class_invalid", "/class"},
		"residency":   {CreateTenant{Name: "A", Class: "small", DataResidency: "EU"}, "data_residency_invalid", "/dataResidency"},
		"external id": {CreateTenant{Name: "A", Class: "small", ExternalIDs: []string{"b", "a b"}}, "external_ids_invalid", "/externalIds/1"},
		"metadata":    {CreateTenant{Name: "A", Class: "small", Metadata: map[string]string{"k": names(501)}}, "metadata_invalid", "/metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newTenants()
			_, err := catalogue.CreateTenant(t.Context(), Request{By: operator}, c.in)
			refusedWith(t, err, c.code, c.pointer)
			_, err = catalogue.ChangeTenant(t.Context(), Request{By: operator}, activeTenant, ChangeTenant{Name: &c.in.Name, Class: &c.in.Class, DataResidency: ptr(c.in.DataResidency + "X"),
				ExternalIDs: &c.in.ExternalIDs, Metadata: &c.in.Metadata})
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
	tx.refused(t, err, "tenant_not_found", "")
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
		made := domain.Tenant{ID: id, Name: "A", Class: "medium", Status: domain.TenantActive, DataResidency: want, CreatedAt: stored, LateUsage: events.LateUsageReject}
		if !reflect.DeepEqual(answer, made) || !reflect.DeepEqual(tx.tenants[id], made) || !reflect.DeepEqual(payload[events.Tenant](t, &event), events.Tenant(made)) || tx.held[0] != events.Platform {
			t.Errorf("%+v, saved %+v, under the head of %s", answer, tx.tenants[id], tx.held[0])
		}
	}
}

func TestExternalIDsAndMetadataHaveBounds(t *testing.T) {
	ids := func(n int) (all []string) {
		for i := range n {
			all = append(all, "id-"+strconv.Itoa(i))
		}
		return all
	}
	notes := func(n int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all["k"+strconv.Itoa(i)] = "v"
		}
		return all
	}
	for name, c := range map[string]struct {
		ids  []string
		meta map[string]string
		code string
	}{
		"no ids": {ids: []string{}}, "16 ids": {ids: ids(16)}, "17 ids": {ids: ids(17), code: "external_ids_invalid"}, "twice": {ids: []string{"a", "b", "a"}, code: "external_ids_invalid"},
		"empty id": {ids: []string{""}, code: "external_ids_invalid"}, "255": {ids: []string{strings.Repeat("x", 255)}}, "256": {ids: []string{strings.Repeat("x", 256)}, code: "external_ids_invalid"},
		"space": {ids: []string{"a b"}, code: "external_ids_invalid"}, "NUL": {ids: []string{"a\x00"}, code: "external_ids_invalid"}, "newline": {ids: []string{"a\n"}, code: "external_ids_invalid"},
		"é": {ids: []string{"é"}, code: "external_ids_invalid"}, "! and ~": {ids: []string{"!~"}},
		"50 keys": {meta: notes(50)}, "51 keys": {meta: notes(51), code: "metadata_invalid"}, "no keys": {meta: notes(0)},
		"key of 64": {meta: map[string]string{names(64): ""}}, "key of 65": {meta: map[string]string{names(65): ""}, code: "metadata_invalid"},
		"empty key": {meta: map[string]string{"": "v"}, code: "metadata_invalid"}, "control in key": {meta: map[string]string{"a\n": "v"}, code: "metadata_invalid"},
		"value of 500": {meta: map[string]string{"k": names(500)}}, "value of 501": {meta: map[string]string{"k": names(501)}, code: "metadata_invalid"},
		"NUL in value": {meta: map[string]string{"k": "\x00"}, code: "metadata_invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newTenants()
			made, err := catalogue.CreateTenant(t.Context(), Request{By: operator}, CreateTenant{Name: "A", Class: "small", ExternalIDs: c.ids, Metadata: c.meta})
			if c.code == "" {
				tx.succeeded(t, err, 1)
				if len(made.ExternalIDs) != len(c.ids) || !maps.Equal(made.Metadata, c.meta) {
					t.Errorf("%+v", made)
				}
				return
			}
			var refusal *domain.Error
			if tx.succeeded(t, nil, 0); !errors.As(err, &refusal) || refusal.Code != c.code {
				t.Errorf("%v", err)
			}
		})
	}
}

// External ids are a set: their order is no change, and no request moves an id from its tenant.
func TestAnExternalIDBelongsToOneTenant(t *testing.T) {
	catalogue, tx := newTenants()
	made, err := catalogue.CreateTenant(t.Context(), Request{By: operator}, CreateTenant{Name: "A", Class: "small", ExternalIDs: []string{"b", "a"}})
	tx.succeeded(t, err, 1)
	if !slices.Equal(made.ExternalIDs, []string{"a", "b"}) {
		t.Errorf("%q", made.ExternalIDs)
	}
	same, err := catalogue.ChangeTenant(t.Context(), Request{By: operator}, made.ID, ChangeTenant{ExternalIDs: &[]string{"b", "a"}})
	if tx.succeeded(t, err, 1); !same.Equal(&made) {
		t.Errorf("%+v", same)
	}
	_, err = catalogue.ChangeTenant(t.Context(), Request{By: operator}, activeTenant, ChangeTenant{ExternalIDs: &[]string{"c", "b"}})
	refusedWith(t, err, "external_id_taken", "/externalIds")
	if tx.succeeded(t, nil, 1); err != nil && !strings.Contains(err.Error(), " b ") {
		t.Errorf("%v", err)
	}
	_, err = catalogue.ChangeTenant(t.Context(), Request{By: operator}, made.ID, ChangeTenant{ExternalIDs: &[]string{"a"}, Metadata: &map[string]string{"k": "v"}})
	tx.succeeded(t, err, 2)
	_, err = catalogue.ChangeTenant(t.Context(), Request{By: operator}, activeTenant, ChangeTenant{ExternalIDs: &[]string{"c", "b"}})
	event := tx.succeeded(t, err, 3)
	if p := payload[events.Tenant](t, &event); !slices.Equal(p.ExternalIDs, []string{"b", "c"}) || p.Metadata != nil {
		t.Errorf("%+v", p)
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
	if !reflect.DeepEqual(answer, want) || !reflect.DeepEqual(tx.tenants[activeTenant], want) || !reflect.DeepEqual(payload[events.Tenant](t, &event), events.Tenant(want)) || tx.held[0] != activeTenant {
		t.Errorf("%+v, saved %+v, under the head of %s", answer, tx.tenants[activeTenant], tx.held[0])
	}
}

func TestAnEqualTenantIsNoChange(t *testing.T) {
	catalogue, tx := newTenants()
	got, err := catalogue.ChangeTenant(t.Context(), Request{By: operator}, activeTenant, ChangeTenant{Name: ptr("Alice")})
	if tx.succeeded(t, err, 0); !reflect.DeepEqual(got, tx.tenants[activeTenant]) {
		t.Errorf("%+v", got)
	}
}
