package usage

import (
	"context"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/refusals"
)

type refusalsRequest struct {
	api.OfTenant
	api.Freshness
	api.Paging
	IncludeTest
	Code    string `query:"code" doc:"A code of a rejection, e.g. feature_not_found."`
	Feature string `query:"feature" doc:"Groups of this feature; *: of the features without a group of their own, above 1,000."`
}

func (s *handlers) listRefusals(ctx context.Context, in *refusalsRequest) (*api.Listed[refusals.Refusal], error) {
	viewer, tenant, err := s.subjectOrAll(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	l := api.List{"refusals", in.TenantID, in.Code, in.Feature, in.IncludeTest.IncludeTest}
	return api.ListRead(l, in.Paging, func(limit int, after string) (query.Page[refusals.Refusal], error) {
		return s.Reads.Refusals.Refusals(ctx, viewer, refusals.Query{TenantID: tenant, Code: in.Code, Feature: in.Feature,
			Test: in.IncludeTest.IncludeTest == "true", Limit: limit, After: after, Wait: wait})
	})
}

// subjectOrAll is subject, where an operator's key that names no tenant reads all: then the tenant is nil.
func (s *handlers) subjectOrAll(ctx context.Context, named string) (query.Viewer, *uuid.UUID, error) {
	if named == "" && edge.ExchangeOf(ctx).Tenant == nil {
		return query.Viewer{Operator: true}, nil, nil
	}
	viewer, tenant, err := s.Subject(ctx, named)
	return viewer, &tenant, err
}
