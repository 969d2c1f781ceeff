package http

import (
	"net/http"
	"sync"
)

// operateHandlers answers the operations of this subject.
type operateHandlers struct {
	*service
	missing sync.Map // name of a dependency → whether its last check failed
}

// operateRoutes registers the operations.
func operateRoutes(t *site) {
	s := &operateHandlers{service: t.service}
	s.sagaOperations(t)
	s.systemOperations(t)
	s.overviewOperations(t)
}

// healthRoutes registers liveness, readiness and metrics alone.
func healthRoutes(t *site) {
	s := &operateHandlers{service: t.service}
	s.healthOperations(t, s.privately)
}

// adminRoutes registers those of an address that only operators reach: metrics for each client, and the profiles of the process.
func adminRoutes(t *site) {
	s := &operateHandlers{service: t.service}
	s.healthOperations(t, func(metrics http.Handler) http.Handler { return metrics })
	s.profileOperations(t)
}
