package http

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

func (s *tenantsHandlers) subscriptionOperations(t *site) {
	const path = prefix + "/tenants/{tenantId}/subscriptions"
	const one = path + "/{subscriptionId}"
	gone := []int{http.StatusNotFound}
	admins := []string{commands.ScopeAdmin}
	serve(t, operation{method: http.MethodPost, path: path, who: auth.Operator, scopes: admins, id: "createSubscription", reasoned: true, tag: "Tenants", status: http.StatusCreated,
		summary: "Subscribe a tenant to a plan", description: "Takes a snapshot of the plan, with the current versions of its prices. A tenant has at most one subscription that is ACTIVE or TRIALING.",
		problems: gone}, s.createSubscription)
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: admins, id: "listSubscriptions", tag: "Tenants", summary: "List a tenant's subscriptions", description: "All subscriptions of a tenant, active and ended ones.",
		problems: gone}, s.listSubscriptions)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: admins, id: "getSubscription", tag: "Tenants", summary: "Read a subscription", description: "A subscription with its snapshot of the entitlements.",
		problems: gone}, s.getSubscription)
	serve(t, operation{method: http.MethodPatch, path: one, who: auth.Operator, scopes: admins, id: "changeSubscription", reasoned: true, tag: "Tenants", summary: "Change a subscription",
		description: "A plan takes a new snapshot. prices current moves the grants on to the current versions of their prices.", problems: gone}, s.changeSubscription)
}

type subscriptionAnswer struct {
	ETag string `header:"ETag" doc:"Of a read: the tag of this state, for If-Match."`
	Body domain.Subscription
}

func subscriptionRef(id uuid.UUID) commands.Ref {
	return commands.Ref{Of: commands.EntitySubscription, ID: id.String()}
}

type createSubscriptionRequest struct {
	TenantPath
	Idempotent
	Body struct {
		Plan     string `json:"plan" minLength:"1" maxLength:"64"`
		Status   string `json:"status,omitempty" enum:"ACTIVE,TRIALING,PAST_DUE,CANCELLED,EXPIRED" default:"ACTIVE" doc:"ACTIVE (the default), TRIALING or PAST_DUE."`
		StartsAt string `json:"startsAt,omitempty" format:"date-time" doc:"The start, also in the past; left out: now. Usage before the start of the tenant's first subscription counts, and costs 0."`
	} `nameHint:"NewSubscription"`
}

func (s *tenantsHandlers) createSubscription(ctx context.Context, in *createSubscriptionRequest) (*subscriptionAnswer, error) {
	tenant, err := idOf(in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	once, err := once(ctx)
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
	made, err := s.Catalogue.CreateSubscription(ctx, edge.ExchangeOf(ctx).Request(once), tenant, wanted)
	return s.settled(ctx, made, err)
}

// settled answers a change after checks see it: a client that reads this answer and then
// checks an entitlement must not get the old state. The delay is bounded: the change is
// already durable in the log.
func (s *tenantsHandlers) settled(ctx context.Context, changed domain.Subscription, err error) (*subscriptionAnswer, error) {
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.settle)
	defer cancel()
	if err := s.Reads.Entitlements.AwaitGrants(ctx, changed.TenantID); err != nil {
		s.log.DebugContext(ctx, "a subscription was answered before checks see it", "tenant", changed.TenantID, "error", err)
	}
	return &subscriptionAnswer{Body: changed}, nil
}

func (s *tenantsHandlers) listSubscriptions(ctx context.Context, in *tenantListRequest) (*listed[domain.Subscription], error) {
	tenant, err := s.knownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return listCatalogue(list{"subscriptions", tenant.ID.String()}, in.Paging,
		func(p commands.Page) ([]domain.Subscription, error) { return s.Reader.Subscriptions(ctx, tenant.ID, p) },
		func(v *domain.Subscription) string { return v.ID.String() })
}

type SubscriptionPath struct {
	TenantPath
	SubscriptionID string `path:"subscriptionId" format:"uuid"`
}

func (p *SubscriptionPath) ids() (tenant, id uuid.UUID, err error) {
	if tenant, err = idOf(p.TenantID, "subscription_not_found"); err == nil {
		id, err = idOf(p.SubscriptionID, "subscription_not_found")
	}
	return tenant, id, err
}

func (s *tenantsHandlers) getSubscription(ctx context.Context, in *struct{ SubscriptionPath }) (*subscriptionAnswer, error) {
	tenant, id, err := in.ids()
	if err != nil {
		return nil, err
	}
	tag, err := s.tagOf(ctx, subscriptionRef(id))
	if err != nil {
		return nil, err
	}
	found, err := present(s.Reader.Subscription(ctx, tenant, id))("subscription_not_found")
	if err != nil {
		return nil, err
	}
	return &subscriptionAnswer{tag, *found}, nil
}

type changeSubscriptionRequest struct {
	SubscriptionPath
	Idempotent
	Conditional
	Body struct {
		Status *string `json:"status,omitempty" enum:"ACTIVE,TRIALING,PAST_DUE,CANCELLED,EXPIRED" doc:"ACTIVE, TRIALING, PAST_DUE, CANCELLED or EXPIRED; only the first two accept usage."`
		Plan   *string `json:"plan,omitempty" minLength:"1" maxLength:"64"`
		Prices *string `json:"prices,omitempty" enum:"current" doc:"current: move on to the current versions of the prices."`
	} `nameHint:"SubscriptionChange"`
}

func (s *tenantsHandlers) changeSubscription(ctx context.Context, in *changeSubscriptionRequest) (*subscriptionAnswer, error) {
	tenant, id, err := in.ids()
	if err != nil {
		return nil, err
	}
	req, err := changeOf(ctx, subscriptionRef(id))
	if err != nil {
		return nil, err
	}
	changed, err := s.Catalogue.ChangeSubscription(ctx, req, tenant, id,
		catalogue.ChangeSubscription{Status: in.Body.Status, Plan: in.Body.Plan, Prices: in.Body.Prices})
	return s.settled(ctx, changed, err)
}
