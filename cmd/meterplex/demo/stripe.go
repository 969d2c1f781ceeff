package demo

import (
	"context"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/stripetest"
)

// stripeCustomer is the demo's tenant in the fake Stripe.
const stripeCustomer = "cus_demo"

// startStripe starts the fake Stripe, and lets the service deliver to it. It has a meter for each feature, and keeps its data in memory.
func (d *Demo) startStripe() *stripetest.Server {
	s := stripetest.New("sk_test_demo", d.Now())
	s.Real = true
	s.OnCount = func(e stripetest.Event) {
		d.Report("Stripe (fake) counts %s %s of %s at %s.", e.Value, e.Event, e.Customer, e.Timestamp.Format(time.RFC3339))
	}
	s.AddCustomer(stripeCustomer)
	for key := range Features() {
		s.AddMeter(stripetest.Meter{Event: key})
	}
	d.Config.StripeKey, d.Config.StripeURL = s.Key, s.URL
	return s
}

// bill makes the tenant the customer, and lets usage of a closed period be an adjustment: the demo continues after a close.
func (d *Demo) bill(ctx context.Context) error {
	path := client.Path("tenants", d.tenantID)
	if _, err := d.operator.Send(ctx, http.MethodPatch, path, nil, map[string]string{"lateUsage": events.LateUsageAdjust}); err != nil {
		return err
	}
	_, err := d.operator.Send(ctx, http.MethodPut, path+"/billing", nil, map[string]string{"provider": "stripe", "customer": stripeCustomer})
	return err
}
