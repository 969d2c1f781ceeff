package http

// usageHandlers answers the operations of this subject.
type usageHandlers struct {
	*service
}

// usageRoutes registers the operations.
func usageRoutes(t *site) {
	s := &usageHandlers{service: t.service}
	s.usageOperations(t)
}
