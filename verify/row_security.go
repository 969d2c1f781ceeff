package verify

import (
	"context"
	"fmt"
)

const (
	// Views use their owner's rights unless they are security invokers.
	tenantTablesSQL = `SELECT c.relname, c.relkind = 'v', c.relrowsecurity AND c.relforcerowsecurity,
 EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND (SELECT oid FROM pg_roles
 WHERE rolname = 'meterplex_tenant') = ANY (p.polroles)),
 coalesce('security_invoker=true' = ANY (c.reloptions) OR 'security_invoker=on' = ANY (c.reloptions), false)
 FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
 AND has_table_privilege('meterplex_tenant', c.oid, 'SELECT')
 AND (EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id') OR c.relname = 'tenants') ORDER BY 1`
	// Every table with tenants' rows forces row level security.
	keptTablesSQL = `SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity FROM pg_class c
 JOIN unnest($1::text[]) AS t (name) ON t.name = c.relname WHERE c.relnamespace = 'public'::regnamespace ORDER BY 1`
)

// tenantTables returns the tables on which the migrations force row level security.
func tenantTables() []string {
	return []string{"event_log", "tenants", "tenant_external_ids", "api_keys", "subscriptions", "subscription_history",
		"idempotency_answers", "usage_aggregates", "usage_running_totals",
		"usage_series", "usage_series_values", "usage_refusals", "entitlement_grants", "entitlement_usage", "dead_letter_events",
		"dead_letter_counts", "projection_pointers", "projection_generations"}
}

func (v *verifier) checkRowSecurity(ctx context.Context) error {
	var name string
	var view, forced, policy, invoker bool
	err := each(ctx, v.log, tenantTablesSQL, nil, []any{&name, &view, &forced, &policy, &invoker}, func() error {
		v.rowSecurity.n++
		if view {
			v.rowSecurity.expect(invoker, "tenants may read the view %s with its owner's rights", name)
			return nil
		}
		// The broker's positions have no tenant_id: they hold no tenant's data.
		v.rowSecurity.expect(forced && policy, "tenants may read %s without forced row level security (forced %v, policy %v)", name, forced,
			policy)
		return nil
	})
	if err == nil {
		err = each(ctx, v.log, keptTablesSQL, []any{tenantTables()}, []any{&name, &forced}, func() error {
			v.rowSecurity.expect(forced, "%s does not force row level security", name)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("check row level security: %w", err)
	}
	v.rowSecurity.done = true
	return nil
}
