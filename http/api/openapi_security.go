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

// scopesOf declares scopes.
func scopesOf(scopes []string) map[string]any {
	meanings := map[string]string{
		commands.ScopeUsageWrite: "Send usage events.", commands.ScopeUsageBackfill: "Send usage events of any age.",
		commands.ScopeUsageRead: "Read usage, receipts and figures.", commands.ScopeEntitlementsRead: "Check entitlements.",
		commands.ScopeEntitlementsReserve: "Use amounts within limits (consume).", commands.ScopeEventsRead: "Read the tenant's event log.",
		commands.ScopeWebhooksManage: "Manage the tenant's webhooks and thresholds, and read deliveries.",
		commands.ScopeAdmin:          "Catalogue, keys, operations and replays; includes billing and audit.",
		commands.ScopeBilling:        "Projections, rebuilds, dead letters and figures.",
		commands.ScopeAudit:          "Read the log, dead letters and figures of any tenant.",
	}
	declared := map[string]string{}
	for _, scope := range scopes {
		declared[scope] = meanings[scope]
	}
	return map[string]any{declaredScopes: declared}
}

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
