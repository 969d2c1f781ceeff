// Package rest takes the place of a package that ruletest compiles and never calls, with the client of Kubernetes behind it.
package rest

import "context"

// WarningHandlerWithContext handles the warnings of a server.
type WarningHandlerWithContext interface {
	HandleWarningHeaderWithContext(ctx context.Context, code int, agent string, text string)
}

// WarningLogger drops warnings.
type WarningLogger struct{}

// HandleWarningHeaderWithContext drops a warning.
func (WarningLogger) HandleWarningHeaderWithContext(context.Context, int, string, string) {}
