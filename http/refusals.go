package http

import (
	"context"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/refusals"
)

type refusalsRequest struct {
	OfTenant
	Freshness
	Paging
	IncludeTest
	Code    string `query:"code" doc:"A code of a rejection, e.g. feature_not_found."`
	Feature string `query:"feature" doc:"Groups of this feature; * is all features without a group of their own: a tenant has at most 1,000 groups."`
}

func (s *usageHandlers) listRefusals(ctx context.Context, in *refusalsRequest) (*listed[refusals.Refusal], error) {
	viewer, tenant, err := s.subjectOrAll(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	l := list{"refusals", in.TenantID, in.Code, in.Feature, in.IncludeTest.IncludeTest}
	_, after, err := l.open(in.Cursor)
	if err != nil {
		return nil, err
	}
	wait, err := in.wait()
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Refusals.Refusals(ctx, viewer, refusals.Query{TenantID: tenant, Code: in.Code, Feature: in.Feature, Test: in.IncludeTest.IncludeTest == "true", Limit: in.Limit, After: after, Wait: wait})
	return &listed[refusals.Refusal]{listedFrom(l, found)}, err
}

// subjectOrAll is subject, where an operator's key that names no tenant reads all: then the tenant is nil.
func (s *usageHandlers) subjectOrAll(ctx context.Context, named string) (query.Viewer, *uuid.UUID, error) {
	if named == "" && edge.ExchangeOf(ctx).Tenant == nil {
		return query.Viewer{Operator: true}, nil, nil
	}
	viewer, tenant, err := s.subject(ctx, named)
	return viewer, &tenant, err
}
