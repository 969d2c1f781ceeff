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

func (s *handlers) subscriptionOperations(t *api.Site) {
	const path = api.Prefix + "/tenants/{tenantId}/subscriptions"
	const one = path + "/{subscriptionId}"
	gone := []int{http.StatusNotFound}
	admins := []string{commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path, Who: auth.Operator, Scopes: admins, ID: "createSubscription",
		Reasoned: true, Tag: "Tenants", Status: http.StatusCreated,
		Summary: "Subscribe a tenant to a plan", Description: "Takes a snapshot of the plan, with the current versions of its prices. A " +
			"tenant has at most one subscription that is ACTIVE or TRIALING.",
		Problems: gone}, s.createSubscription)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: admins, ID: "listSubscriptions",
		Tag: "Tenants", Summary: "List a tenant's subscriptions", Description: "All subscriptions of a tenant, active and ended ones.",
		Problems: gone}, s.listSubscriptions)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: admins, ID: "getSubscription", Tag: "Tenants",
		Summary: "Read a subscription", Description: "A subscription with its snapshot of the entitlements.",
		Problems: gone}, s.getSubscription)
	api.Serve(t, api.Operation{Method: http.MethodPatch, Path: one, Who: auth.Operator, Scopes: admins, ID: "changeSubscription",
		Reasoned: true, Tag: "Tenants", Summary: "Change a subscription",
		Description: "A plan takes a new snapshot. prices current moves the grants on to the current versions of their prices.",
		Problems:    gone}, s.changeSubscription)
}

type subscriptionAnswer struct {
	ETag string `header:"ETag" doc:"Of a read: the tag of this state, for If-Match."`
	Body domain.Subscription
}

func subscriptionRef(id uuid.UUID) commands.Ref {
	return commands.Ref{Of: commands.EntitySubscription, ID: id.String()}
}

type createSubscriptionRequest struct {
	api.TenantPath
	api.Idempotent
	Body struct {
		Plan     string `json:"plan" minLength:"1" maxLength:"64"`
		Status   string `json:"status,omitempty" enum:"ACTIVE,TRIALING,PAST_DUE,CANCELLED,EXPIRED" default:"ACTIVE"`
		StartsAt string `json:"startsAt,omitempty" format:"date-time"`
	} `nameHint:"NewSubscription"`
}

func (s *handlers) createSubscription(ctx context.Context, in *createSubscriptionRequest) (*subscriptionAnswer, error) {
	req, tenant, err := api.ChangeOne(ctx, in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	wanted := catalogue.CreateSubscription{Plan: in.Body.Plan, Status: in.Body.Status}
	if in.Body.StartsAt != "" {
		at, fault := domain.ParseTime(in.Body.StartsAt)
		if fault != nil {
			return nil, &domain.Error{Code: "starts_at_invalid", Message: fault.Message, Pointer: "/startsAt"}
		}
		wanted.StartsAt = &at
	}
	made, err := s.Catalogue.CreateSubscription(ctx, req, tenant, wanted)
	return s.settled(ctx, made, err)
}

// settled answers a change after checks see it: a client that reads this answer and then
// checks an entitlement must not get the old state. The delay is bounded: the change is
// already durable in the log.
func (s *handlers) settled(ctx context.Context, changed domain.Subscription, err error) (*subscriptionAnswer, error) {
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Settle)
	defer cancel()
	if err := s.Reads.Entitlements.AwaitGrants(ctx, changed.TenantID); err != nil {
		s.Log.DebugContext(ctx, "a subscription was answered before checks see it", "tenant", changed.TenantID, "error", err)
	}
	return &subscriptionAnswer{Body: changed}, nil
}

func (s *handlers) listSubscriptions(ctx context.Context, in *tenantListRequest) (*api.Listed[domain.Subscription], error) {
	tenant, err := s.KnownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return api.ListCatalogue(api.List{"subscriptions", tenant.ID.String()}, in.Paging,
		func(p commands.Page) ([]domain.Subscription, error) { return s.Reader.Subscriptions(ctx, tenant.ID, p) },
		func(v *domain.Subscription) string { return v.ID.String() })
}

type SubscriptionPath struct {
	api.TenantPath
	SubscriptionID string `path:"subscriptionId" format:"uuid"`
}

func (p *SubscriptionPath) ids() (tenant, id uuid.UUID, err error) {
	if tenant, err = api.IDOf(p.TenantID, "subscription_not_found"); err == nil {
		id, err = api.IDOf(p.SubscriptionID, "subscription_not_found")
	}
	return tenant, id, err
}

func (s *handlers) getSubscription(ctx context.Context, in *struct{ SubscriptionPath }) (*subscriptionAnswer, error) {
	tenant, id, err := in.ids()
	if err != nil {
		return nil, err
	}
	tag, err := s.TagOf(ctx, subscriptionRef(id))
	if err != nil {
		return nil, err
	}
	found, err := api.Present(s.Reader.Subscription(ctx, tenant, id))("subscription_not_found")
	if err != nil {
		return nil, err
	}
	return &subscriptionAnswer{tag, found}, nil
}

type changeSubscriptionRequest struct {
	SubscriptionPath
	api.Idempotent
	api.Conditional
	Body struct {
		Status *string `json:"status,omitempty" enum:"ACTIVE,TRIALING,PAST_DUE,CANCELLED,EXPIRED"`
		Plan   *string `json:"plan,omitempty" minLength:"1" maxLength:"64"`
		Prices *string `json:"prices,omitempty" enum:"current" doc:"current: move on to the current versions of the prices."`
	} `nameHint:"SubscriptionChange"`
}

func (s *handlers) changeSubscription(ctx context.Context, in *changeSubscriptionRequest) (*subscriptionAnswer, error) {
	tenant, id, err := in.ids()
	if err != nil {
		return nil, err
	}
	req, err := api.ChangeOf(ctx, subscriptionRef(id))
	if err != nil {
		return nil, err
	}
	changed, err := s.Catalogue.ChangeSubscription(ctx, req, tenant, id,
		catalogue.ChangeSubscription{Status: in.Body.Status, Plan: in.Body.Plan, Prices: in.Body.Prices})
	return s.settled(ctx, changed, err)
}
