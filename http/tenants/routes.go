package tenants

import "github.com/meterplex/meterplex/http/api"

// handlers answers the operations of this subject.
type handlers struct {
	*api.Service
}

// Routes registers the operations.
func Routes(t *api.Site) {
	s := &handlers{Service: t.Service}
	s.tenantOperations(t)
	s.keyOperations(t)
	s.portalOperations(t)
	s.subscriptionOperations(t)
	s.billingOperations(t)
	s.webhookOperations(t)
	s.thresholdOperations(t)
	s.offboardingOperations(t)
	s.erasureOperations(t)
}
