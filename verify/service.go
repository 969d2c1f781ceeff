package verify

import "encoding/json"

// Service is the API of the service, for the checks that it runs itself.
type Service interface {
	// Identity returns the response of GET /system/identity.
	Identity() (json.RawMessage, error)
	// Projections returns the projections of GET /projections.
	Projections() ([]json.RawMessage, error)
	// VerifyProjection compares a projection with a new fold of the log.
	VerifyProjection(name string) (ProjectionVerify, error)
}

// ProjectionVerify is the outcome of a verify of a projection.
type ProjectionVerify struct {
	RebuildID, State, Failure string
	Differs                   *int64 // nil: it ended without an outcome
}

// ServiceChecks runs the checks over HTTP.
func ServiceChecks(svc Service) ([]Check, error) {
	checks := []Check{identity(svc)}
	folds, err := projectionFolds(svc)
	if err != nil {
		return nil, err
	}
	return append(checks, folds...), nil
}
