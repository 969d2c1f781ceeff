package http

// catalogueHandlers answers the operations of this subject.
type catalogueHandlers struct {
	*service
}

// catalogueRoutes registers the operations.
func catalogueRoutes(t *site) {
	s := &catalogueHandlers{service: t.service}
	s.featureOperations(t)
	s.planOperations(t)
	s.priceOperations(t)
}
