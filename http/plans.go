package http

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *catalogueHandlers) planOperations(t *site) {
	const path, one = prefix + "/plans", prefix + "/plans/{key}"
	admins := []string{commands.ScopeAdmin}
	serve(t, operation{method: http.MethodPut, path: one, who: auth.Operator, scopes: admins, also: http.StatusCreated, id: "putPlan", reasoned: true, tag: "Features and plans", summary: "Define a plan or change it",
		description: "201 for a new one, 200 for a changed one. Subscriptions keep the snapshot they took."}, s.putPlan)
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: admins, id: "listPlans", tag: "Features and plans", summary: "List plans", description: "All plans, by key."}, s.listPlans)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: admins, id: "getPlan", tag: "Features and plans", summary: "Read a plan", description: "A plan by its key. Subscriptions keep the entitlements that the plan had when they began.",
		problems: []int{http.StatusNotFound}}, s.getPlan)
	serve(t, operation{method: http.MethodGet, path: one + "/subscriptions", who: auth.Operator, scopes: admins, id: "listPlanSubscriptions", tag: "Features and plans", summary: "List a plan's subscriptions",
		description: "Of all tenants, active and ended ones. With `snapshot=older` those that go on with a snapshot of an earlier state of the plan.", problems: []int{http.StatusNotFound}}, s.listPlanSubscriptions)
}

type PlanPath struct {
	Key catalogueKey `path:"key"`
}

func (s *catalogueHandlers) plans() defined[domain.Plan] {
	key := func(p *domain.Plan) string { return p.Key }
	return defined[domain.Plan]{commands.EntityPlan, key, s.Catalogue.PutPlan, s.Reader.Plan, s.Reader.Plans}
}

type newEntitlement struct {
	Feature       lookupKey    `json:"feature"`
	Limit         *int64       `json:"limit,omitempty" minimum:"0" maximum:"9007199254740991" nullable:"true" doc:"null: no limit."`
	LimitBehavior string       `json:"limitBehavior,omitempty" enum:"HARD,SOFT"`
	ResetPeriod   string       `json:"resetPeriod,omitempty" enum:"MONTHLY,ANNUALLY,NEVER"`
	OnIngest      string       `json:"onIngest,omitempty" enum:"record,enforce" doc:"enforce refuses usage above a HARD limit of a QUOTA feature; record counts it."`
	Price         catalogueKey `json:"price,omitempty" doc:"Key of the price of the amount that a period counts."`
	ChargeTrial   bool         `json:"chargeTrial,omitempty" doc:"Charge the usage of a TRIALING subscription, too."`
}

type putPlanRequest struct {
	PlanPath
	Idempotent
	Conditional
	Creating
	Body struct {
		Name         string           `json:"name" minLength:"1" maxLength:"200"`
		Entitlements []newEntitlement `json:"entitlements" maxItems:"200" nullable:"false"`
	} `nameHint:"NewPlan"`
}

func (s *catalogueHandlers) putPlan(ctx context.Context, in *putPlanRequest) (*definedAnswer[domain.Plan], error) {
	plan, err := as[domain.Plan](in.Body)
	if err != nil {
		return nil, err
	}
	plan.Key = string(in.Key)
	return s.plans().define(ctx, plan)
}

func (s *catalogueHandlers) listPlans(ctx context.Context, in *struct{ Paging }) (*listed[domain.Plan], error) {
	return s.plans().page(ctx, in.Paging)
}

func (s *catalogueHandlers) getPlan(ctx context.Context, in *struct{ PlanPath }) (*definedAnswer[domain.Plan], error) {
	return s.plans().read(ctx, s, string(in.Key), absent("plan_not_found"))
}

type planSubscriptionsRequest struct {
	PlanPath
	Snapshot string `query:"snapshot" enum:"older" doc:"older: only subscriptions that have not ended, and whose snapshot differs from the plan."`
	Paging
}

func (s *catalogueHandlers) listPlanSubscriptions(ctx context.Context, in *planSubscriptionsRequest) (*listed[domain.Subscription], error) {
	key := string(in.Key)
	if _, err := present(s.Reader.Plan(ctx, key))("plan_not_found"); err != nil {
		return nil, err
	}
	return listCatalogue(list{"subscriptions of a plan", key, in.Snapshot}, in.Paging,
		func(p commands.Page) ([]domain.Subscription, error) {
			return s.Reader.SubscriptionsOfPlan(ctx, key, in.Snapshot != "", p)
		},
		func(v *domain.Subscription) string { return v.ID.String() })
}
