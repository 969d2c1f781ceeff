package http

// billingHandlers answers the operations of this subject.
type billingHandlers struct {
	*service
}

// billingRoutes registers the operations.
func billingRoutes(t *site) {
	s := &billingHandlers{service: t.service}
	s.periodOperations(t)
	s.adjustmentOperations(t)
	s.pushOperations(t)
}
