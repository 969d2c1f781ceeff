package http

// eventsHandlers answers the operations of this subject.
type eventsHandlers struct {
	*service
}

// eventsRoutes registers the operations.
func eventsRoutes(t *site) {
	s := &eventsHandlers{service: t.service}
	s.eventOperations(t)
	s.schemaOperations(t)
}
