package billing

import "github.com/meterplex/meterplex/http/api"

// handlers answers the operations of this subject.
type handlers struct {
	*api.Service
}

// Routes registers the operations.
func Routes(t *api.Site) {
	s := &handlers{Service: t.Service}
	s.periodOperations(t)
	s.adjustmentOperations(t)
	s.pushOperations(t)
}
