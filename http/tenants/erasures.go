package tenants

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) erasureOperations(t *api.Site) {
	const path = api.Prefix + "/tenants/{tenantId}/erase"
	gone := []int{http.StatusNotFound}
	readers := []string{commands.ScopeAdmin, commands.ScopeAudit}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path, Who: auth.Operator, Scopes: []string{commands.ScopeAdmin},
		ID: "eraseTenant", Tag: "Tenants", Status: http.StatusAccepted,
		Summary: "Erase the personal data of an archived tenant",
		Description: "A background process erases the name, external ids and metadata of the tenant, and the metadata of its usage, in the " +
			"log and in all tables. Figures, positions and periods stay. " +
			"It cannot be undone. A tenant that is not ARCHIVED is 409 `tenant_not_archived`; a second request returns the first erasure.",
		Problems: gone}, s.eraseTenant)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "getErasure", Tag: "Tenants",
		Summary:     "Read the erasure of a tenant",
		Description: "Its state and its progress.", Problems: gone}, s.getErasure)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: api.Prefix + "/erasures", Who: auth.Operator, Scopes: readers,
		ID: "listErasures", Tag: "Tenants", Summary: "List erasures",
		Description: "All erasures, by the tenant's id. Keep the list outside the database: erasures are repeated after the restore of " +
			"a backup that is older."}, s.listErasures)
}

type eraseRequest struct {
	api.TenantPath
	api.Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log; without personal data."`
	} `nameHint:"Erase"`
}

func (s *handlers) eraseTenant(ctx context.Context, in *eraseRequest) (*api.Accepted[domain.Erasure], error) {
	req, tenant, err := api.ChangeOne(ctx, in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	e, err := s.Erasures.Start(ctx, req, tenant, in.Body.Reason)
	return api.AcceptedSaga(e.SagaID, e, err)
}

func (s *handlers) getErasure(ctx context.Context, in *struct{ api.TenantPath }) (*api.Answer[domain.Erasure], error) {
	tenant, err := s.KnownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return api.AnswerOf(api.Present(s.ErasureReader.Erasure(ctx, tenant.ID))("erasure_not_found"))
}

func (s *handlers) listErasures(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[domain.Erasure], error) {
	return api.ListCatalogue(api.List{"erasures"}, in.Paging, func(p commands.Page) ([]domain.Erasure, error) {
		return s.ErasureReader.Erasures(ctx, p)
	}, func(e *domain.Erasure) string { return e.TenantID.String() })
}
