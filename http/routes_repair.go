package http

// repairHandlers answers the operations of this subject.
type repairHandlers struct {
	*service
}

// repairRoutes registers the operations.
func repairRoutes(t *site) {
	s := &repairHandlers{service: t.service}
	s.deadLetterOperations(t)
	s.replayOperations(t)
	s.projectionOperations(t)
	s.rebuildOperations(t)
	s.outboxOperations(t)
}
