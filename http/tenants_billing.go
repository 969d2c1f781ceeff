package http

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
)

// billingOperations are those of a tenant's customer at the billing provider.
func (s *tenantsHandlers) billingOperations(t *site) {
	const path = prefix + "/tenants/{tenantId}/billing"
	gone, deciders := []int{http.StatusNotFound}, []string{commands.ScopeBilling}
	serve(t, operation{method: http.MethodPut, path: path, who: auth.Operator, scopes: deciders, id: "putBilling", reasoned: true, tag: "Pushes", summary: "Set the customer of a tenant at the billing provider",
		description: "From now on what is due of the tenant's closed periods is pushed to the provider. Periods that are closed and ended at most 35 days ago are pushed, too, as far as no push of them exists. Pushes that were never sent go to the new customer; a credit goes to the customer that was charged.",
		problems:    gone}, s.putBilling)
	serve(t, operation{method: http.MethodDelete, path: path, who: auth.Operator, scopes: deciders, id: "deleteBilling", reasoned: true, tag: "Pushes", summary: "Remove the customer of a tenant",
		description: "Nothing more is pushed. Pushes that are stored are still sent.", problems: gone}, s.deleteBilling)
}

type putBillingRequest struct {
	TenantPath
	Idempotent
	Conditional
	Body struct {
		Provider string `json:"provider" enum:"stripe" doc:"The billing provider."`
		Customer string `json:"customer" minLength:"1" maxLength:"255" doc:"The provider's id of the customer." example:"cus_NffrFeUfNV2Hib"`
	} `nameHint:"Billing"`
}

func (s *tenantsHandlers) putBilling(ctx context.Context, in *putBillingRequest) (*tenantAnswer, error) {
	return s.setBilling(ctx, in.TenantID, &events.Billing{Provider: in.Body.Provider, Customer: in.Body.Customer})
}

type deleteBillingRequest struct {
	TenantPath
	Idempotent
	Conditional
}

func (s *tenantsHandlers) deleteBilling(ctx context.Context, in *deleteBillingRequest) (*tenantAnswer, error) {
	return s.setBilling(ctx, in.TenantID, nil)
}

func (s *tenantsHandlers) setBilling(ctx context.Context, tenant string, to *events.Billing) (*tenantAnswer, error) {
	id, err := idOf(tenant, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	req, err := changeOf(ctx, tenantRef(id))
	if err != nil {
		return nil, err
	}
	t, err := s.Pushes.SetBilling(ctx, req, id, to)
	return &tenantAnswer{Body: t}, err
}
