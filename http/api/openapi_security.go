package api

import (
	"slices"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/auth"
)

// Names of the security schemes.
const (
	tenantScheme   = "tenantKey"
	operatorScheme = "operatorKey"
)

// Extensions of the document: OpenAPI declares scopes of OAuth 2 and OpenID Connect only, and its
// linters refuse them in the security requirements of other schemes.
const (
	declaredScopes = "x-scopes"          // of a scheme: each scope with its meaning
	requiredScopes = "x-required-scopes" // of an operation, by scheme: a key needs one of them
)

// security lists the accepted kinds of keys as alternatives, and the scopes of each.
func security(route *auth.Route) (accepted []map[string][]string, scopes map[string][]string) {
	if route.Who == auth.AnyKey {
		return []map[string][]string{{tenantScheme: {}}, {operatorScheme: {}}}, nil
	}
	scopes = map[string][]string{}
	for _, scope := range route.Scopes {
		scheme := tenantScheme
		if slices.Contains(commands.OperatorScopes(), scope) {
			scheme = operatorScheme
		}
		if scopes[scheme] == nil {
			accepted = append(accepted, map[string][]string{scheme: {}})
		}
		scopes[scheme] = append(scopes[scheme], scope)
	}
	return accepted, scopes
}
