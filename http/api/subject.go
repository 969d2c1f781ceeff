package api

import (
	"context"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
)

// TenantPath is the path parameter that names a tenant.
type TenantPath struct {
	TenantID string `path:"tenantId" format:"uuid"`
}

// IDOf parses an id of a path. An invalid id is not found, like an unknown one.
func IDOf(text, code string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != len(uuid.Nil.String()) || id == uuid.Nil {
		return uuid.Nil, Absent(code)
	}
	return id, nil
}

// Absent is the answer for entities that do not exist or belong to another tenant.
func Absent(code string) *domain.Error {
	return &domain.Error{Code: code, Message: "Not found"}
}

// Present returns an entity that was read, or the answer for one that does not exist.
func Present[T any](found *T, err error) func(code string) (T, error) {
	return func(code string) (one T, _ error) {
		switch {
		case err != nil:
			return one, err
		case found == nil:
			return one, Absent(code)
		}
		return *found, nil
	}
}

// KnownTenant finds the tenant that a path or a parameter names.
func (s *Service) KnownTenant(ctx context.Context, text string) (*domain.Tenant, error) {
	id, err := IDOf(text, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	t, err := Present(s.Reader.Tenant(ctx, id))("tenant_not_found")
	return &t, err
}

// OptionalTenant returns the id of the tenant that a filter names; nil for the empty text.
func (s *Service) OptionalTenant(ctx context.Context, text string) (*uuid.UUID, error) {
	if text == "" {
		return nil, nil
	}
	t, err := s.KnownTenant(ctx, text)
	if err != nil {
		return nil, err
	}
	return &t.ID, nil
}

// OfTenant names the tenant of a read.
type OfTenant struct {
	TenantID string `query:"tenantId" format:"uuid" doc:"Operator keys name the tenant here; a tenant's key names it already."`
}

// Subject finds the tenant whose usage is read, and the viewer. A tenant key gets the
// same answer for another tenant's id as for an unknown id.
func (s *Service) Subject(ctx context.Context, named string) (query.Viewer, uuid.UUID, error) {
	x := edge.ExchangeOf(ctx)
	if x.Tenant != nil {
		own := x.Caller.TenantID
		if named != "" {
			if id, err := IDOf(named, "tenant_not_found"); err != nil || id != own {
				return query.Viewer{}, uuid.Nil, Absent("tenant_not_found")
			}
		}
		return query.Viewer{TenantID: own}, own, nil
	}
	if named == "" {
		return query.Viewer{}, uuid.Nil, problem.New("parameter_missing", "Operator keys name the tenant by tenantId")
	}
	tenant, err := s.KnownTenant(ctx, named)
	if err != nil {
		return query.Viewer{}, uuid.Nil, err
	}
	return query.Viewer{Operator: true}, tenant.ID, nil
}
