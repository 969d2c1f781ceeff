package http

// entitlementsHandlers answers the operations of this subject.
type entitlementsHandlers struct {
	*service
}

// entitlementsRoutes registers the operations.
func entitlementsRoutes(t *site) {
	s := &entitlementsHandlers{service: t.service}
	s.entitlementOperations(t)
	s.consumeOperations(t)
	s.reservationOperations(t)
	s.accountOperations(t)
}
