package tenants

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) thresholdOperations(t *api.Site) {
	const path, one = api.Prefix + "/tenants/{tenantId}/thresholds", api.Prefix + "/tenants/{tenantId}/thresholds/{thresholdId}"
	gone := []int{http.StatusNotFound}
	managers, readers := []string{commands.ScopeWebhooksManage, commands.ScopeBilling},
		[]string{commands.ScopeWebhooksManage, commands.ScopeBilling, commands.ScopeAudit}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path, Who: auth.Either, Scopes: managers, ID: "createThreshold",
		Reasoned: true, Tag: "Thresholds", Status: http.StatusCreated,
		Summary: "Define a threshold",
		Description: "Once the used amount of a feature rises to the threshold, threshold.crossed is recorded: once for each feature, " +
			"period and value. A percentage is one of the limit in force, rounded up to a unit. " +
			"An amount that is used already crosses it in the next period, or at another limit.",
		Problems: gone}, s.createThreshold)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Either, Scopes: readers, ID: "listThresholds",
		Tag: "Thresholds", Summary: "List the thresholds of a tenant",
		Description: "In the order of their definition.", Problems: gone}, s.listThresholds)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Either, Scopes: readers, ID: "getThreshold", Tag: "Thresholds",
		Summary:     "Read a threshold",
		Description: "Without its crossings: those are events.", Problems: gone}, s.getThreshold)
	api.Serve(t, api.Operation{Method: http.MethodDelete, Path: one, Who: auth.Either, Scopes: managers, ID: "removeThreshold",
		Reasoned: true, Tag: "Thresholds", Summary: "Remove a threshold",
		Description: "Usage that is counted from now on does not cross it. To change a threshold, remove it and define another.",
		Problems:    gone}, s.removeThreshold)
}

// ThresholdPath names a threshold of a tenant.
type ThresholdPath struct {
	api.TenantPath
	ThresholdID string `path:"thresholdId" format:"uuid"`
}

func (p *ThresholdPath) find(ctx context.Context, s *handlers) (tenant, id uuid.UUID, err error) {
	return s.ownObject(ctx, p.TenantID, p.ThresholdID, "threshold_not_found")
}

type shownThreshold struct{ Body domain.DefinedThreshold }

type createThresholdRequest struct {
	api.TenantPath
	api.Idempotent
	Body struct {
		Feature *api.LookupKey `json:"feature,omitempty" doc:"Key of a QUOTA or METERED feature; absent: each feature, each on its own." example:"api_calls"`
		Percent *int64         `json:"percent,omitempty" minimum:"1" maximum:"1000" doc:"A percentage of the limit, 1 to 1000; above 100 for a SOFT limit. A feature without a limit never crosses it." example:"80"`
		Amount  *int64         `json:"amount,omitempty" minimum:"1" maximum:"9007199254740991" doc:"In place of percent: a used amount."`
	} `nameHint:"NewThreshold"`
}

func (s *handlers) createThreshold(ctx context.Context, in *createThresholdRequest) (*shownThreshold, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	t, err := s.Thresholds.Create(ctx, req, tenant,
		catalogue.NewThreshold{Feature: (*string)(in.Body.Feature), Percent: in.Body.Percent, Amount: in.Body.Amount})
	if err != nil {
		return nil, err
	}
	return &shownThreshold{t}, nil
}

func (s *handlers) listThresholds(ctx context.Context, in *tenantListRequest) (*api.Listed[domain.DefinedThreshold], error) {
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return api.ListCatalogue(api.List{"thresholds", tenant.String()}, in.Paging,
		func(p commands.Page) ([]domain.DefinedThreshold, error) {
			return s.ThresholdReader.Thresholds(ctx, tenant, p)
		},
		func(t *domain.DefinedThreshold) string { return t.ID.String() })
}

func (s *handlers) getThreshold(ctx context.Context, in *struct{ ThresholdPath }) (*shownThreshold, error) {
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	found, err := s.ThresholdReader.Threshold(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, api.Absent("threshold_not_found")
	}
	return &shownThreshold{*found}, nil
}

type removeThresholdRequest struct {
	ThresholdPath
	api.Idempotent
}

func (s *handlers) removeThreshold(ctx context.Context, in *removeThresholdRequest) (*struct{}, error) {
	req, tenant, id, err := s.change(ctx, in)
	if err != nil {
		return nil, err
	}
	return &struct{}{}, s.Thresholds.Remove(ctx, req, tenant, id)
}
