package catalogue

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) planOperations(t *api.Site) {
	const path, one = api.Prefix + "/plans", api.Prefix + "/plans/{key}"
	admins := []string{commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodPut, Path: one, Who: auth.Operator, Scopes: admins, Also: http.StatusCreated,
		ID: "putPlan", Reasoned: true, Tag: "Features and plans", Summary: "Define a plan or change it",
		Description: "201 for a new one, 200 for a changed one. Subscriptions keep the snapshot they took."}, s.putPlan)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: admins, ID: "listPlans",
		Tag: "Features and plans", Summary: "List plans", Description: "All plans, by key."}, s.listPlans)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: admins, ID: "getPlan",
		Tag: "Features and plans", Summary: "Read a plan",
		Description: "A plan by its key. Subscriptions keep the entitlements that the plan had when they began.",
		Problems:    []int{http.StatusNotFound}}, s.getPlan)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one + "/subscriptions", Who: auth.Operator, Scopes: admins,
		ID: "listPlanSubscriptions", Tag: "Features and plans", Summary: "List a plan's subscriptions",
		Description: "Of all tenants, active and ended ones. With `snapshot=older` those that go on with a snapshot of an earlier state " +
			"of the plan.", Problems: []int{http.StatusNotFound}}, s.listPlanSubscriptions)
}

type PlanPath struct {
	Key api.CatalogueKey `path:"key"`
}

func (s *handlers) plans() defined[domain.Plan] {
	key := func(p *domain.Plan) *string { return &p.Key }
	return defined[domain.Plan]{commands.EntityPlan, key, s.Catalogue.PutPlan, s.Reader.Plan, s.Reader.Plans}
}

type newEntitlement struct {
	Feature       api.LookupKey    `json:"feature"`
	Limit         *int64           `json:"limit,omitempty" minimum:"0" maximum:"9007199254740991" nullable:"true" doc:"null: no limit."`
	LimitBehavior string           `json:"limitBehavior,omitempty" enum:"HARD,SOFT"`
	ResetPeriod   string           `json:"resetPeriod,omitempty" enum:"MONTHLY,ANNUALLY,NEVER"`
	OnIngest      string           `json:"onIngest,omitempty" enum:"record,enforce" doc:"enforce refuses usage above a HARD limit of a QUOTA feature; record counts it."`
	Price         api.CatalogueKey `json:"price,omitempty" doc:"Key of the price of the amount that a period counts."`
	ChargeTrial   bool             `json:"chargeTrial,omitempty" doc:"Charge the usage of a TRIALING subscription, too."`
}

type putPlanRequest struct {
	PlanPath
	api.Idempotent
	api.Conditional
	api.Creating
	Body struct {
		Name         string           `json:"name" minLength:"1" maxLength:"200"`
		Entitlements []newEntitlement `json:"entitlements" maxItems:"200" nullable:"false"`
	} `nameHint:"NewPlan"`
}

func (s *handlers) putPlan(ctx context.Context, in *putPlanRequest) (*definedAnswer[domain.Plan], error) {
	return s.plans().define(ctx, string(in.Key), in.Body)
}

func (s *handlers) listPlans(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[domain.Plan], error) {
	return s.plans().page(ctx, in.Paging)
}

func (s *handlers) getPlan(ctx context.Context, in *struct{ PlanPath }) (*definedAnswer[domain.Plan], error) {
	return s.plans().read(ctx, s, string(in.Key), api.Absent("plan_not_found"))
}

type planSubscriptionsRequest struct {
	PlanPath
	Snapshot string `query:"snapshot" enum:"older" doc:"older: only subscriptions that have not ended, and whose snapshot differs from the plan."`
	api.Paging
}

func (s *handlers) listPlanSubscriptions(ctx context.Context, in *planSubscriptionsRequest) (*api.Listed[domain.Subscription], error) {
	key := string(in.Key)
	if _, err := api.Present(s.Reader.Plan(ctx, key))("plan_not_found"); err != nil {
		return nil, err
	}
	return api.ListCatalogue(api.List{"subscriptions of a plan", key, in.Snapshot}, in.Paging,
		func(p commands.Page) ([]domain.Subscription, error) {
			return s.Reader.SubscriptionsOfPlan(ctx, key, in.Snapshot != "", p)
		},
		func(v *domain.Subscription) string { return v.ID.String() })
}
