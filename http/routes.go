package http

import (
	nethttp "net/http"
	"slices"

	"github.com/meterplex/meterplex/commands"
)

// Who is the kind of caller that may use a route.
type Who string

// Public routes need no key; the others name the kind of key that they accept.
const (
	Public   Who = "public"
	Tenant   Who = "tenant"
	Operator Who = "operator"
	Either   Who = "either"
)

// Route is a row of the route table. A key needs one of the scopes; admin includes the
// other operator scopes.
type Route struct {
	Method, Path string
	Who          Who
	Scopes       []string
}

func (r *Route) name() string { return r.Method + " " + r.Path }

// isIngest reports whether the route is ingest, which has its own limit of requests in
// flight.
func (r *Route) isIngest() bool { return r.Method == post && r.Path == prefix+"/usage/events" }

// prefix is the path of the API. Routes outside it need no key.
const prefix = "/api/v1"

// Routes is the table of all routes. The service does not start if a route has no row or
// a row has no route.
func Routes() []Route {
	return slices.Concat(usageRoutes(), deadLetterRoutes(), projectionRoutes(), catalogueRoutes(), systemRoutes())
}

// Short names of methods, for the tables.
const (
	get   = nethttp.MethodGet
	post  = nethttp.MethodPost
	put   = nethttp.MethodPut
	patch = nethttp.MethodPatch
	del   = nethttp.MethodDelete
)

func usageRoutes() []Route {
	const (
		usage        = prefix + "/usage"
		log          = prefix + "/events"
		entitlements = prefix + "/entitlements"
		write, read  = commands.ScopeUsageWrite, commands.ScopeUsageRead
		granted      = commands.ScopeEntitlementsRead
	)
	usageReaders := []string{read, commands.ScopeBilling, commands.ScopeAudit}
	logReaders := []string{commands.ScopeEventsRead, commands.ScopeAudit}
	return []Route{
		{post, usage + "/events", Tenant, []string{write}},
		{get, usage + "/events", Either, usageReaders},
		{get, usage + "/events/{eventId}", Either, usageReaders},
		{get, usage + "/conflicts", Either, usageReaders},
		{get, usage + "/aggregates", Either, usageReaders},
		{get, usage + "/aggregates/explain", Either, usageReaders},

		{get, log, Either, logReaders},
		{get, log + "/export", Either, logReaders},
		{get, log + "/stream", Either, logReaders},
		{get, log + "/{event}", Either, logReaders},
		{get, log + "/{event}/lineage", Either, logReaders},

		{get, entitlements, Tenant, []string{granted}},
		{get, entitlements + "/{feature}/check", Tenant, []string{granted}},
		{post, entitlements + "/check", Tenant, []string{granted}},
	}
}

func deadLetterRoutes() []Route {
	const letters, one = prefix + "/dead-letters", prefix + "/dead-letters/{deadLetterId}"
	deciders, readers := []string{commands.ScopeBilling}, []string{commands.ScopeBilling, commands.ScopeAudit}
	return []Route{
		{get, letters, Operator, readers},
		{get, letters + "/groups", Operator, readers},
		{post, letters + "/bulk", Operator, deciders},
		{get, one, Operator, readers},
		{post, one + "/retry", Operator, deciders},
		{post, one + "/discard", Operator, deciders},
	}
}

func projectionRoutes() []Route {
	const (
		projected        = prefix + "/projections"
		rebuilds         = prefix + "/rebuilds"
		rebuild          = rebuilds + "/{rebuildId}"
		replays          = prefix + "/replays"
		admin            = commands.ScopeAdmin
		billing, auditor = commands.ScopeBilling, commands.ScopeAudit
	)
	return []Route{
		{get, projected, Operator, []string{billing, auditor}},
		{post, projected + "/{name}/rebuilds", Operator, []string{billing}},
		{post, projected + "/{name}/verify", Operator, []string{billing}},
		{get, rebuilds, Operator, []string{billing, auditor}},
		{get, rebuild, Operator, []string{billing, auditor}},
		{get, rebuild + "/events", Operator, []string{billing, auditor}},
		{get, rebuild + "/diff", Operator, []string{billing, auditor}},
		{get, rebuild + "/diff/events", Operator, []string{billing, auditor}},
		{post, rebuild + "/promote", Operator, []string{billing}},
		{post, rebuild + "/rollback", Operator, []string{billing}},
		{post, rebuild + "/abandon", Operator, []string{billing}},

		{post, replays, Operator, []string{admin}},
		{post, replays + "/rewind", Operator, []string{admin}},
		{get, replays, Operator, []string{admin}},
		{get, replays + "/{replayId}", Operator, []string{admin}},
	}
}

func catalogueRoutes() []Route {
	const (
		tenants, opKeys = prefix + "/tenants", prefix + "/operator-keys"
		features, plans = prefix + "/features", prefix + "/plans"
		keys            = tenants + "/{tenantId}/api-keys"
		subscriptions   = tenants + "/{tenantId}/subscriptions"
		admin           = commands.ScopeAdmin
	)
	return []Route{
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
	}
}

func systemRoutes() []Route {
	const billing, auditor, admin = commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin
	return append(healthRoutes(), []Route{
		{get, prefix + "/system", Operator, []string{billing, auditor, admin}},
		{get, prefix + "/system/identity", Operator, []string{billing, auditor, admin}},

		{get, "/openapi.json", Public, nil},
		{get, "/openapi.yaml", Public, nil},
		{get, "/docs", Public, nil},
	}...)
}

// healthRoutes are served by every instance, whatever its roles.
func healthRoutes() []Route {
	return []Route{
		{get, "/livez", Public, nil},
		{get, "/readyz", Public, nil},
		{get, "/metrics", Public, nil},
	}
}
