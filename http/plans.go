package http

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *service) planOperations(t *site) {
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
	Key string `path:"key" pattern:"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"`
}

// planAnswer has status 201 for a new plan, else 200.
type planAnswer struct {
	Status int
	ETag   string `header:"ETag" doc:"Of a read: the tag of this state, for If-Match."`
	Body   domain.Plan
}

func planRef(key string) commands.Ref { return commands.Ref{Of: commands.EntityPlan, ID: key} }

func planBody(p domain.Plan) domain.Plan {
	if p.Entitlements == nil {
		p.Entitlements = []domain.Entitlement{}
	}
	return p
}

type newEntitlement struct {
	Feature       string `json:"feature" pattern:"^[a-z][a-z0-9_.-]{0,63}$"`
	Limit         *int64 `json:"limit,omitempty" minimum:"0" maximum:"9007199254740991" nullable:"true" doc:"null: no limit."`
	LimitBehavior string `json:"limitBehavior,omitempty" enum:"HARD,SOFT"`
	ResetPeriod   string `json:"resetPeriod,omitempty" enum:"MONTHLY,ANNUALLY,NEVER"`
	OnIngest      string `json:"onIngest,omitempty" enum:"record,enforce" doc:"enforce refuses usage above a HARD limit of a QUOTA feature; record counts it."`
	Price         string `json:"price,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$" doc:"Key of the price of the amount that a period counts."`
	ChargeTrial   bool   `json:"chargeTrial,omitempty" doc:"Charge the usage of a TRIALING subscription, too."`
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

func (s *service) putPlan(ctx context.Context, in *putPlanRequest) (*planAnswer, error) {
	plan := domain.Plan{Key: in.Key, Name: in.Body.Name, Entitlements: make([]domain.Entitlement, len(in.Body.Entitlements))}
	for i, e := range in.Body.Entitlements {
		plan.Entitlements[i] = domain.Entitlement(e)
	}
	req, err := changeOf(ctx, planRef(in.Key))
	if err != nil {
		return nil, err
	}
	plan, created, err := s.Catalogue.PutPlan(ctx, req, plan)
	return &planAnswer{Status: putStatus(created), Body: planBody(plan)}, err
}

func (s *service) listPlans(ctx context.Context, in *struct{ Paging }) (*listed[domain.Plan], error) {
	return listCatalogue(list{"plans"}, in.Paging, func(p commands.Page) ([]domain.Plan, error) { return s.Reader.Plans(ctx, p) },
		func(p *domain.Plan) string { *p = planBody(*p); return p.Key })
}

func (s *service) getPlan(ctx context.Context, in *struct{ PlanPath }) (*planAnswer, error) {
	tag, err := s.tagOf(ctx, planRef(in.Key))
	if err != nil {
		return nil, err
	}
	p, err := present(s.Reader.Plan(ctx, in.Key))("plan_not_found")
	if err != nil {
		return nil, err
	}
	return &planAnswer{http.StatusOK, tag, planBody(*p)}, nil
}

type planSubscriptionsRequest struct {
	PlanPath
	Snapshot string `query:"snapshot" enum:"older" doc:"older: only subscriptions that have not ended, and whose snapshot differs from the plan."`
	Paging
}

func (s *service) listPlanSubscriptions(ctx context.Context, in *planSubscriptionsRequest) (*listed[domain.Subscription], error) {
	if _, err := present(s.Reader.Plan(ctx, in.Key))("plan_not_found"); err != nil {
		return nil, err
	}
	return listCatalogue(list{"subscriptions of a plan", in.Key, in.Snapshot}, in.Paging,
		func(p commands.Page) ([]domain.Subscription, error) {
			return s.Reader.SubscriptionsOfPlan(ctx, in.Key, in.Snapshot != "", p)
		},
		func(v *domain.Subscription) string { *v = subscriptionBody(*v); return v.ID.String() })
}
