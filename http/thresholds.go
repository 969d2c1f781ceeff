package http

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

func (s *tenantsHandlers) thresholdOperations(t *site) {
	const path, one = prefix + "/tenants/{tenantId}/thresholds", prefix + "/tenants/{tenantId}/thresholds/{thresholdId}"
	gone := []int{http.StatusNotFound}
	managers, readers := []string{commands.ScopeWebhooksManage, commands.ScopeBilling}, []string{commands.ScopeWebhooksManage, commands.ScopeBilling, commands.ScopeAudit}
	serve(t, operation{method: http.MethodPost, path: path, who: auth.Either, scopes: managers, id: "createThreshold", reasoned: true, tag: "Thresholds", status: http.StatusCreated,
		summary: "Define a threshold",
		description: "Once the used amount of a feature rises to the threshold, threshold.crossed is recorded: once for each feature, period and value. A percentage is one of the limit in force, rounded up to a unit. " +
			"An amount that is used already crosses it in the next period, or at another limit.",
		problems: gone}, s.createThreshold)
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Either, scopes: readers, id: "listThresholds", tag: "Thresholds", summary: "List the thresholds of a tenant",
		description: "In the order of their definition.", problems: gone}, s.listThresholds)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Either, scopes: readers, id: "getThreshold", tag: "Thresholds", summary: "Read a threshold",
		description: "Without its crossings: those are events.", problems: gone}, s.getThreshold)
	serve(t, operation{method: http.MethodDelete, path: one, who: auth.Either, scopes: managers, id: "removeThreshold", reasoned: true, tag: "Thresholds", summary: "Remove a threshold",
		description: "Usage that is counted from now on does not cross it. To change a threshold, remove it and define another.", problems: gone}, s.removeThreshold)
}

// ThresholdPath names a threshold of a tenant.
type ThresholdPath struct {
	TenantPath
	ThresholdID string `path:"thresholdId" format:"uuid"`
}

func (p *ThresholdPath) find(ctx context.Context, s *tenantsHandlers) (tenant, id uuid.UUID, err error) {
	return s.ownObject(ctx, p.TenantID, p.ThresholdID, "threshold_not_found")
}

// thresholdBody is a threshold in its wire format.
type thresholdBody struct {
	ID        uuid.UUID       `json:"id" format:"uuid"`
	TenantID  uuid.UUID       `json:"tenantId" format:"uuid"`
	Feature   *string         `json:"feature" doc:"Key of the feature; null: each feature."`
	Percent   *int64          `json:"percent" doc:"Of the limit in force; null: it is an amount."`
	Amount    *int64          `json:"amount" doc:"The used amount; null: it is a percentage."`
	Position  events.Position `json:"position" doc:"Usage that is counted behind this position crosses it."`
	CreatedAt time.Time       `json:"createdAt"`
}

func thresholdOf(t *domain.Threshold) thresholdBody {
	b := thresholdBody{ID: t.ID, TenantID: t.TenantID, Feature: textOrNull(t.Feature), Position: t.Position, CreatedAt: t.CreatedAt.UTC()}
	if t.Percent > 0 {
		b.Percent = &t.Percent
	} else {
		b.Amount = &t.Amount
	}
	return b
}

type shownThreshold struct{ Body thresholdBody }

type createThresholdRequest struct {
	TenantPath
	Idempotent
	Body struct {
		Feature *lookupKey `json:"feature,omitempty" doc:"Key of a QUOTA or METERED feature; absent: each feature, each on its own." example:"api_calls"`
		Percent *int64     `json:"percent,omitempty" minimum:"1" maximum:"1000" doc:"A percentage of the limit, 1 to 1000; above 100 for a SOFT limit. A feature without a limit never crosses it." example:"80"`
		Amount  *int64     `json:"amount,omitempty" minimum:"1" maximum:"9007199254740991" doc:"In place of percent: a used amount."`
	} `nameHint:"NewThreshold"`
}

func (s *tenantsHandlers) createThreshold(ctx context.Context, in *createThresholdRequest) (*shownThreshold, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	t, err := s.Thresholds.Create(ctx, edge.ExchangeOf(ctx).Request(once), tenant, catalogue.NewThreshold{Feature: (*string)(in.Body.Feature), Percent: in.Body.Percent, Amount: in.Body.Amount})
	if err != nil {
		return nil, err
	}
	return &shownThreshold{thresholdOf(&t)}, nil
}

func (s *tenantsHandlers) listThresholds(ctx context.Context, in *tenantListRequest) (*listed[thresholdBody], error) {
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return listCatalogue(list{"thresholds", tenant.String()}, in.Paging, func(p commands.Page) ([]thresholdBody, error) {
		found, err := s.ThresholdReader.Thresholds(ctx, tenant, p)
		return bodiesOf(found, thresholdOf), err
	}, func(t *thresholdBody) string { return t.ID.String() })
}

func (s *tenantsHandlers) getThreshold(ctx context.Context, in *struct{ ThresholdPath }) (*shownThreshold, error) {
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	found, err := s.ThresholdReader.Threshold(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, absent("threshold_not_found")
	}
	return &shownThreshold{thresholdOf(found)}, nil
}

type removeThresholdRequest struct {
	ThresholdPath
	Idempotent
}

func (s *tenantsHandlers) removeThreshold(ctx context.Context, in *removeThresholdRequest) (*struct{}, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return &struct{}{}, s.Thresholds.Remove(ctx, edge.ExchangeOf(ctx).Request(once), tenant, id)
}
