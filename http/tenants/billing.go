package tenants

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

// billingOperations are those of a tenant's customer at the billing provider.
func (s *handlers) billingOperations(t *api.Site) {
	const path = api.Prefix + "/tenants/{tenantId}/billing"
	gone, deciders := []int{http.StatusNotFound}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodPut, Path: path, Who: auth.Operator, Scopes: deciders, ID: "putBilling", Reasoned: true,
		Tag: "Pushes", Summary: "Set the customer of a tenant at the billing provider",
		Description: "The amounts due of the tenant's closed periods are delivered to the provider from now on, also those of periods that " +
			"ended at most 35 days ago and have no delivery yet. Deliveries that were never sent go to the new " +
			"customer; a credit goes to the customer that was charged.",
		Problems: gone}, s.putBilling)
	api.Serve(t, api.Operation{Method: http.MethodDelete, Path: path, Who: auth.Operator, Scopes: deciders, ID: "deleteBilling",
		Reasoned: true, Tag: "Pushes", Summary: "Remove the customer of a tenant",
		Description: "No further delivery is stored. Stored ones are still sent.", Problems: gone}, s.deleteBilling)
}

type putBillingRequest struct {
	api.TenantPath
	api.Idempotent
	api.Conditional
	Body struct {
		Provider string `json:"provider" enum:"stripe" doc:"The billing provider."`
		Customer string `json:"customer" minLength:"1" maxLength:"255" doc:"The provider's id of the customer." example:"cus_NffrFeUfNV2Hib"`
	} `nameHint:"Billing"`
}

func (s *handlers) putBilling(ctx context.Context, in *putBillingRequest) (*tenantAnswer, error) {
	return s.setBilling(ctx, in.TenantID, &events.Billing{Provider: in.Body.Provider, Customer: in.Body.Customer})
}

type deleteBillingRequest struct {
	api.TenantPath
	api.Idempotent
	api.Conditional
}

func (s *handlers) deleteBilling(ctx context.Context, in *deleteBillingRequest) (*tenantAnswer, error) {
	return s.setBilling(ctx, in.TenantID, nil)
}

func (s *handlers) setBilling(ctx context.Context, tenant string, to *events.Billing) (*tenantAnswer, error) {
	id, err := api.IDOf(tenant, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	req, err := api.ChangeOf(ctx, tenantRef(id))
	if err != nil {
		return nil, err
	}
	t, err := s.Pushes.SetBilling(ctx, req, id, to)
	return &tenantAnswer{Body: t}, err
}
