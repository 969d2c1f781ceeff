package http

// tenantsHandlers answers the operations of this subject.
type tenantsHandlers struct {
	*service
}

// tenantsRoutes registers the operations.
func tenantsRoutes(t *site) {
	s := &tenantsHandlers{service: t.service}
	s.tenantOperations(t)
	s.keyOperations(t)
	s.subscriptionOperations(t)
	s.billingOperations(t)
	s.webhookOperations(t)
	s.thresholdOperations(t)
	s.offboardingOperations(t)
	s.erasureOperations(t)
}
