package billing

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/periods"
	"github.com/meterplex/meterplex/projections/query"
)

func (s *handlers) adjustmentOperations(t *api.Site) {
	const path, one = api.Prefix + "/adjustments", api.Prefix + "/adjustments/{adjustmentId}"
	gone := []int{http.StatusNotFound}
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "listAdjustments",
		Tag: "Periods", Summary: "List adjustments",
		Description: "Differences of closed periods: late usage, and differences after a rebuild. With tenantId by period, snapshot " +
			"and position; else oldest first.",
		Problems: gone}, s.listAdjustments)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/approve", Who: auth.Operator, Scopes: deciders,
		ID: "approveAdjustment", Tag: "Periods", Summary: "Approve an adjustment",
		Description: "The billable figure of its line includes it from now on. A decision is final.", Problems: gone}, s.approveAdjustment)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/waive", Who: auth.Operator, Scopes: deciders, ID: "waiveAdjustment",
		Tag: "Periods", Summary: "Waive an adjustment",
		Description: "It is not billed. A decision is final.", Problems: gone}, s.waiveAdjustment)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path + "/decide", Who: auth.Operator, Scopes: deciders,
		ID: "decideAdjustments", Tag: "Periods", Summary: "Approve or waive many adjustments",
		Description: "Either those of ids, all of one tenant and pending, or all pending ones of a tenant's period up to a position, in " +
			"one transaction. With dryRun they are only counted.",
		Problems: gone}, s.decideAdjustments)
}

// AdjustmentFilters are the filters of lists of adjustments.
type AdjustmentFilters struct {
	State   string `query:"state" enum:"PENDING,APPROVED,WAIVED,VOID" doc:"Adjustments in this state."`
	Kind    string `query:"kind" enum:"LATE_USAGE,LATE_COMMIT,RETRY,CORRECTION,RETRACTION,REBUILD" doc:"Adjustments of this kind."`
	Feature string `query:"feature" doc:"Adjustments of this feature."`
}

type adjustmentsRequest struct {
	api.OfTenant
	api.Freshness
	PeriodKey string `query:"periodKey" doc:"Adjustments of this period, e.g. 2026-05 or 2026."`
	AdjustmentFilters
	api.Paging
}

func (s *handlers) listAdjustments(ctx context.Context, in *adjustmentsRequest) (*api.Listed[periods.Adjustment], error) {
	if in.PeriodKey != "" && !api.IsPeriod(in.PeriodKey) {
		return nil, api.PeriodInvalid("periodKey")
	}
	tenant, err := s.OptionalTenant(ctx, in.TenantID)
	switch {
	case err != nil:
	case tenant != nil:
		err = s.AwaitFigures(ctx, *tenant, in.Freshness)
	case in.MinPosition != "":
		err = problem.New("parameter_invalid", "minPosition needs a tenantId: each tenant has positions of its own")
	}
	if err != nil {
		return nil, err
	}
	return s.adjustments(ctx, tenant, in.PeriodKey, in.AdjustmentFilters, in.Paging)
}

type periodAdjustmentsRequest struct {
	PeriodRead
	AdjustmentFilters
	api.Paging
}

func (s *handlers) listPeriodAdjustments(ctx context.Context, in *periodAdjustmentsRequest) (*api.Listed[periods.Adjustment], error) {
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return s.adjustments(ctx, &tenant, in.PeriodKey, in.AdjustmentFilters, in.Paging)
}

func (s *handlers) adjustments(ctx context.Context, tenant *uuid.UUID, periodKey string, f AdjustmentFilters,
	p api.Paging) (*api.Listed[periods.Adjustment], error) {
	l := api.List{"adjustments", "", periodKey, f.State, f.Kind, f.Feature}
	if tenant != nil {
		l[1] = tenant.String()
	}
	return api.ListRead(l, p, func(limit int, after string) (query.Page[periods.Adjustment], error) {
		return s.Reads.Periods.Adjustments(ctx, periods.AdjustmentQuery{TenantID: tenant, PeriodKey: periodKey, State: f.State, Kind: f.Kind,
			Feature: f.Feature, Limit: limit, After: after})
	})
}

type adjustmentRequest struct {
	AdjustmentID string `path:"adjustmentId" format:"uuid"`
	api.Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"AdjustmentDecision"`
}

type decidedAnswer = api.Answer[billing.DecidedAdjustments]

func (s *handlers) approveAdjustment(ctx context.Context, in *adjustmentRequest) (*decidedAnswer, error) {
	return s.decideOne(ctx, in, billing.DecisionApprove)
}

func (s *handlers) waiveAdjustment(ctx context.Context, in *adjustmentRequest) (*decidedAnswer, error) {
	return s.decideOne(ctx, in, billing.DecisionWaive)
}

func (s *handlers) decideOne(ctx context.Context, in *adjustmentRequest, decision string) (*decidedAnswer, error) {
	id, err := api.IDOf(in.AdjustmentID, "adjustment_not_found")
	if err != nil {
		return nil, err
	}
	return s.decideAdjusting(ctx, billing.DecideAdjustments{IDs: []uuid.UUID{id}, Decision: decision, Reason: in.Body.Reason})
}

func (s *handlers) decideAdjusting(ctx context.Context, in billing.DecideAdjustments) (*decidedAnswer, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	return api.AnswerOf(s.Periods.Decide(ctx, req, in))
}

type decideRequest struct {
	api.Idempotent
	Body struct {
		IDs       []string `json:"ids,omitempty" minItems:"1" maxItems:"1000" nullable:"false"`
		TenantID  string   `json:"tenantId,omitempty" format:"uuid" doc:"Of a scope: pending adjustments of the tenant."`
		PeriodKey string   `json:"periodKey,omitempty" minLength:"1" maxLength:"20"`
		Feature   string   `json:"feature,omitempty" minLength:"1" maxLength:"64" doc:"Of a scope: of this feature."`
		Kind      string   `json:"kind,omitempty" enum:"LATE_USAGE,LATE_COMMIT,RETRY,CORRECTION,RETRACTION,REBUILD"`
		UpTo      string   `json:"upTo,omitempty" minLength:"1" maxLength:"30" example:"17-9400"`
		Decision  string   `json:"decision" enum:"approve,waive"`
		Reason    string   `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
		DryRun    bool     `json:"dryRun,omitempty" doc:"Only count the adjustments."`
	} `nameHint:"AdjustmentDecisions"`
}

func (s *handlers) decideAdjustments(ctx context.Context, in *decideRequest) (*decidedAnswer, error) {
	b := &in.Body
	decision := billing.DecideAdjustments{Decision: b.Decision, Reason: b.Reason, DryRun: b.DryRun}
	for _, text := range b.IDs {
		id, err := api.IDOf(text, "adjustment_not_found")
		if err != nil {
			return nil, problem.New("ids_invalid", "ids must be ids of adjustments, as lists show them").At("/ids")
		}
		decision.IDs = append(decision.IDs, id)
	}
	if b.TenantID == "" && b.PeriodKey == "" && b.Feature == "" && b.Kind == "" && b.UpTo == "" {
		return s.decideAdjusting(ctx, decision)
	}
	decision.Scope = &events.AdjustmentScope{PeriodKey: b.PeriodKey, Feature: b.Feature, Kind: b.Kind}
	if len(b.IDs) > 0 { // both: refused before the tenant is looked for
		return s.decideAdjusting(ctx, decision)
	}
	if b.TenantID == "" || b.PeriodKey == "" || b.UpTo == "" {
		return nil, problem.New("decision_invalid", "A scope needs tenantId, periodKey and upTo")
	}
	tenant, err := s.KnownTenant(ctx, b.TenantID)
	if err != nil {
		return nil, err
	}
	if decision.Scope.UpTo, err = events.ParsePosition(b.UpTo); err != nil {
		return nil, problem.New("up_to_invalid", "upTo: "+err.Error()).At("/upTo")
	}
	decision.TenantID = tenant.ID
	return s.decideAdjusting(ctx, decision)
}
