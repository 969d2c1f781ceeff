package http

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/periods"
)

func (s *billingHandlers) adjustmentOperations(t *site) {
	const path, one = prefix + "/adjustments", prefix + "/adjustments/{adjustmentId}"
	gone := []int{http.StatusNotFound}
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: readers, id: "listAdjustments", tag: "Periods", summary: "List adjustments",
		description: "Differences of closed periods: late verdicts, and differences after a rebuild. With tenantId by period, snapshot and position; else oldest first.",
		problems:    gone}, s.listAdjustments)
	serve(t, operation{method: http.MethodPost, path: one + "/approve", who: auth.Operator, scopes: deciders, id: "approveAdjustment", tag: "Periods", summary: "Approve an adjustment",
		description: "The billable figure of its line includes it from now on. A decision is final.", problems: gone}, s.approveAdjustment)
	serve(t, operation{method: http.MethodPost, path: one + "/waive", who: auth.Operator, scopes: deciders, id: "waiveAdjustment", tag: "Periods", summary: "Waive an adjustment",
		description: "It is not billed. A decision is final.", problems: gone}, s.waiveAdjustment)
	serve(t, operation{method: http.MethodPost, path: path + "/decide", who: auth.Operator, scopes: deciders, id: "decideAdjustments", tag: "Periods", summary: "Approve or waive many adjustments",
		description: "Either those of ids, all of one tenant and pending, or all pending ones of a tenant's period up to a position, in one transaction. With dryRun nothing is decided.",
		problems:    gone}, s.decideAdjustments)
}

// AdjustmentFilters are the filters of lists of adjustments.
type AdjustmentFilters struct {
	State   string `query:"state" enum:"PENDING,APPROVED,WAIVED,VOID" doc:"Adjustments in this state."`
	Kind    string `query:"kind" enum:"LATE_USAGE,LATE_COMMIT,RETRY,CORRECTION,RETRACTION,REBUILD" doc:"Adjustments of this kind."`
	Feature string `query:"feature" doc:"Adjustments of this feature."`
}

type adjustmentsRequest struct {
	OfTenant
	Freshness
	PeriodKey string `query:"periodKey" doc:"Adjustments of this period, e.g. 2026-05 or 2026."`
	AdjustmentFilters
	Paging
}

func (s *billingHandlers) listAdjustments(ctx context.Context, in *adjustmentsRequest) (*listed[periods.Adjustment], error) {
	if in.PeriodKey != "" && !isPeriod(in.PeriodKey) {
		return nil, periodInvalid("periodKey")
	}
	tenant, err := s.optionalTenant(ctx, in.TenantID)
	switch {
	case err != nil:
	case tenant != nil:
		err = s.awaitFigures(ctx, *tenant, in.Freshness)
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
	Paging
}

func (s *billingHandlers) listPeriodAdjustments(ctx context.Context, in *periodAdjustmentsRequest) (*listed[periods.Adjustment], error) {
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return s.adjustments(ctx, &tenant, in.PeriodKey, in.AdjustmentFilters, in.Paging)
}

func (s *billingHandlers) adjustments(ctx context.Context, tenant *uuid.UUID, periodKey string, f AdjustmentFilters, p Paging) (*listed[periods.Adjustment], error) {
	l := list{"adjustments", "", periodKey, f.State, f.Kind, f.Feature}
	if tenant != nil {
		l[1] = tenant.String()
	}
	_, after, err := l.open(p.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Periods.Adjustments(ctx, periods.AdjustmentQuery{TenantID: tenant, PeriodKey: periodKey, State: f.State, Kind: f.Kind, Feature: f.Feature,
		Limit: p.Limit, After: after})
	return &listed[periods.Adjustment]{listedFrom(l, found)}, err
}

type adjustmentRequest struct {
	AdjustmentID string `path:"adjustmentId" format:"uuid"`
	Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"AdjustmentDecision"`
}

type decidedAnswer struct{ Body billing.DecidedAdjustments }

func (s *billingHandlers) approveAdjustment(ctx context.Context, in *adjustmentRequest) (*decidedAnswer, error) {
	return s.decideOne(ctx, in, billing.DecisionApprove)
}

func (s *billingHandlers) waiveAdjustment(ctx context.Context, in *adjustmentRequest) (*decidedAnswer, error) {
	return s.decideOne(ctx, in, billing.DecisionWaive)
}

func (s *billingHandlers) decideOne(ctx context.Context, in *adjustmentRequest, decision string) (*decidedAnswer, error) {
	id, err := idOf(in.AdjustmentID, "adjustment_not_found")
	if err != nil {
		return nil, err
	}
	return s.decideAdjusting(ctx, billing.DecideAdjustments{IDs: []uuid.UUID{id}, Decision: decision, Reason: in.Body.Reason})
}

func (s *billingHandlers) decideAdjusting(ctx context.Context, in billing.DecideAdjustments) (*decidedAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	decided, err := s.Periods.Decide(ctx, edge.ExchangeOf(ctx).Request(once), in)
	return &decidedAnswer{decided}, err
}

type decideRequest struct {
	Idempotent
	Body struct {
		IDs       []string `json:"ids,omitempty" minItems:"1" maxItems:"1000" nullable:"false" doc:"Adjustments of one tenant by their ids. All must be pending. Not together with the members below."`
		TenantID  string   `json:"tenantId,omitempty" format:"uuid" doc:"Of a scope: pending adjustments of the tenant."`
		PeriodKey string   `json:"periodKey,omitempty" minLength:"1" maxLength:"20" doc:"Of a scope, required: of this period's present snapshot."`
		Feature   string   `json:"feature,omitempty" minLength:"1" maxLength:"64" doc:"Of a scope: of this feature."`
		Kind      string   `json:"kind,omitempty" enum:"LATE_USAGE,LATE_COMMIT,RETRY,CORRECTION,RETRACTION,REBUILD" doc:"Of a scope: of this kind."`
		UpTo      string   `json:"upTo,omitempty" minLength:"1" maxLength:"30" doc:"Of a scope, required: the position of the last adjustment that you have seen. Later ones are not decided." example:"17-9400"`
		Decision  string   `json:"decision" enum:"approve,waive"`
		Reason    string   `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
		DryRun    bool     `json:"dryRun,omitempty" doc:"Only count the adjustments."`
	} `nameHint:"AdjustmentDecisions"`
}

func (s *billingHandlers) decideAdjustments(ctx context.Context, in *decideRequest) (*decidedAnswer, error) {
	b := &in.Body
	decision := billing.DecideAdjustments{Decision: b.Decision, Reason: b.Reason, DryRun: b.DryRun}
	for _, text := range b.IDs {
		id, err := idOf(text, "adjustment_not_found")
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
	tenant, err := s.knownTenant(ctx, b.TenantID)
	if err != nil {
		return nil, err
	}
	if decision.Scope.UpTo, err = events.ParsePosition(b.UpTo); err != nil {
		return nil, problem.New("up_to_invalid", "upTo: "+err.Error()).At("/upTo")
	}
	decision.TenantID = tenant.ID
	return s.decideAdjusting(ctx, decision)
}
