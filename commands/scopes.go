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

// TenantScopes lists the scopes that tenant keys may hold.
func TenantScopes() []string {
	return []string{ScopeUsageWrite, ScopeUsageBackfill, ScopeUsageRead, ScopeEntitlementsRead, ScopeEntitlementsReserve, ScopeEventsRead,
		ScopeWebhooksManage}
}

// PortalScopes are the read-only scopes of the key of a portal link.
func PortalScopes() []string { return []string{ScopeUsageRead, ScopeEntitlementsRead} }

// OperatorScopes lists the scopes that operator keys may hold.
func OperatorScopes() []string { return []string{ScopeAdmin, ScopeBilling, ScopeAudit} }

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
