package http

import (
	nethttp "net/http"

	"github.com/meterplex/meterplex/commands"
)

// Who may call a route.
type Who string

// Public routes take no key; the others say which kind of key they take.
const (
	Public   Who = "public"
	Tenant   Who = "tenant"
	Operator Who = "operator"
	Either   Who = "either"
)

// Route is a row of the route table. A key needs one of the scopes; admin
// includes the other operator scopes.
type Route struct {
	Method, Path string
	Who          Who
	Scopes       []string
}

func (r *Route) name() string { return r.Method + " " + r.Path }

// prefix is where the API lives; what is outside it needs no key.
const prefix = "/api/v1"

// Routes is the table of all routes: what is served without a row, or has a row
// and is not served, keeps the service from starting.
func Routes() []Route {
	const (
		get, post, put   = nethttp.MethodGet, nethttp.MethodPost, nethttp.MethodPut
		patch, del       = nethttp.MethodPatch, nethttp.MethodDelete
		tenants, opKeys  = prefix + "/tenants", prefix + "/operator-keys"
		usage, letters   = prefix + "/usage", prefix + "/dead-letters"
		features, plans  = prefix + "/features", prefix + "/plans"
		entitlements     = prefix + "/entitlements"
		keys             = tenants + "/{tenantId}/api-keys"
		subscriptions    = tenants + "/{tenantId}/subscriptions"
		write, read      = commands.ScopeUsageWrite, commands.ScopeUsageRead
		granted          = commands.ScopeEntitlementsRead
		admin            = commands.ScopeAdmin
		billing, auditor = commands.ScopeBilling, commands.ScopeAudit
	)
	usageReaders := []string{read, billing, auditor}
	return []Route{
		{post, usage + "/events", Tenant, []string{write}},
		{get, usage + "/events", Either, usageReaders},
		{get, usage + "/events/{eventId}", Either, usageReaders},
		{get, usage + "/conflicts", Either, usageReaders},
		{get, usage + "/aggregates", Either, usageReaders},

		{get, entitlements, Tenant, []string{granted}},
		{get, entitlements + "/{feature}/check", Tenant, []string{granted}},
		{post, entitlements + "/check", Tenant, []string{granted}},

		{get, letters, Operator, []string{billing, auditor}},
		{get, letters + "/{deadLetterId}", Operator, []string{billing, auditor}},
		{post, letters + "/{deadLetterId}/retry", Operator, []string{billing}},

		{post, tenants, Operator, []string{admin}},
		{get, tenants, Operator, []string{admin}},
		{get, tenants + "/{tenantId}", Operator, []string{admin}},
		{patch, tenants + "/{tenantId}", Operator, []string{admin}},

		{post, keys, Operator, []string{admin}},
		{get, keys, Operator, []string{admin}},
		{post, keys + "/{keyId}/rotate", Operator, []string{admin}},
		{del, keys + "/{keyId}", Operator, []string{admin}},

		{post, opKeys, Operator, []string{admin}},
		{get, opKeys, Operator, []string{admin}},
		{post, opKeys + "/{keyId}/rotate", Operator, []string{admin}},
		{del, opKeys + "/{keyId}", Operator, []string{admin}},

		{put, features + "/{lookupKey}", Operator, []string{admin}},
		{get, features, Operator, []string{admin}},
		{get, features + "/{lookupKey}", Operator, []string{admin}},
		{put, plans + "/{key}", Operator, []string{admin}},
		{get, plans, Operator, []string{admin}},
		{get, plans + "/{key}", Operator, []string{admin}},

		{post, subscriptions, Operator, []string{admin}},
		{get, subscriptions, Operator, []string{admin}},
		{get, subscriptions + "/{subscriptionId}", Operator, []string{admin}},
		{patch, subscriptions + "/{subscriptionId}", Operator, []string{admin}},

		{get, prefix + "/system/identity", Operator, []string{billing, auditor, admin}},

		{get, "/livez", Public, nil},
		{get, "/readyz", Public, nil},
		{get, "/metrics", Public, nil},
		{get, "/openapi.json", Public, nil},
		{get, "/openapi.yaml", Public, nil},
		{get, "/docs", Public, nil},
	}
}
