package operate

import (
	"net/http"
	"sync"

	"github.com/meterplex/meterplex/http/api"
)

// handlers answers the operations of this subject.
type handlers struct {
	*api.Service
	missing sync.Map // name of a dependency → whether its last check failed
}

// Routes registers the operations.
func Routes(t *api.Site) {
	s := &handlers{Service: t.Service}
	s.sagaOperations(t)
	s.systemOperations(t)
	s.overviewOperations(t)
}

// HealthRoutes registers liveness, readiness and metrics alone.
func HealthRoutes(t *api.Site) {
	s := &handlers{Service: t.Service}
	s.healthOperations(t, s.privately)
}

// AdminRoutes registers those of an address that only operators reach: metrics for each client, and the profiles of the process.
func AdminRoutes(t *api.Site) {
	s := &handlers{Service: t.Service}
	s.healthOperations(t, func(metrics http.Handler) http.Handler { return metrics })
	s.profileOperations(t)
}
