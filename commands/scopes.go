package commands

// Scopes of tenant keys and of operator keys.
const (
	ScopeUsageWrite          = "usage:write"
	ScopeUsageBackfill       = "usage:backfill"
	ScopeUsageRead           = "usage:read"
	ScopeEntitlementsRead    = "entitlements:read"
	ScopeEntitlementsReserve = "entitlements:reserve"
	ScopeEventsRead          = "events:read"
	ScopeWebhooksManage      = "webhooks:manage"

	ScopeAdmin   = "admin"
	ScopeBilling = "billing"
	ScopeAudit   = "audit"
)

// scope is an entry of the lists of scopes: all else that names a scope follows from them, but for docs/reference/scopes.md.
type scope struct{ name, meaning string }

var tenantScopes = [...]scope{
	{ScopeUsageWrite, "Send usage events."},
	{ScopeUsageBackfill, "Send usage events of any age."},
	{ScopeUsageRead, "Read usage, receipts and figures."},
	{ScopeEntitlementsRead, "Check entitlements."},
	{ScopeEntitlementsReserve, "Use amounts within limits (consume)."},
	{ScopeEventsRead, "Read the tenant's event log."},
	{ScopeWebhooksManage, "Manage the tenant's webhooks and thresholds, and read deliveries."},
}

var operatorScopes = [...]scope{
	{ScopeAdmin, "Catalogue, keys, operations and replays; includes billing and audit."},
	{ScopeBilling, "Projections, rebuilds, dead letters and figures."},
	{ScopeAudit, "Read the log, dead letters and figures of any tenant."},
}

// TenantScopes lists the scopes that tenant keys may hold.
func TenantScopes() []string { return namesOf(tenantScopes[:]) }

// PortalScopes are the read-only scopes of the key of a portal link.
func PortalScopes() []string { return []string{ScopeUsageRead, ScopeEntitlementsRead} }

// OperatorScopes lists the scopes that operator keys may hold.
func OperatorScopes() []string { return namesOf(operatorScopes[:]) }

func namesOf(list []scope) (names []string) {
	for _, s := range list {
		names = append(names, s.name)
	}
	return names
}

// TenantMeanings returns the meanings of the scopes of tenant keys, by name.
func TenantMeanings() map[string]string { return meaningsOf(tenantScopes[:]) }

// OperatorMeanings returns the meanings of the scopes of operator keys, by name.
func OperatorMeanings() map[string]string { return meaningsOf(operatorScopes[:]) }

func meaningsOf(list []scope) map[string]string {
	meanings := map[string]string{}
	for _, s := range list {
		meanings[s.name] = s.meaning
	}
	return meanings
}

// Has reports whether the caller holds a scope; admin includes the other
// operator scopes.
func (c *Caller) Has(scope string) bool {
	for _, s := range c.Scopes {
		if s == scope || (s == ScopeAdmin && (scope == ScopeBilling || scope == ScopeAudit)) {
			return true
		}
	}
	return false
}
