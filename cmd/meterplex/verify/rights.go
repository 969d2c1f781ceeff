package verify

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The server itself computes a role's privileges, including those from PUBLIC.
const (
	// Views use their owner's rights unless they are security invokers.
	tenantTablesSQL = `SELECT c.relname, c.relkind = 'v', c.relrowsecurity AND c.relforcerowsecurity,
 EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND (SELECT oid FROM pg_roles WHERE rolname = 'meterplex_tenant') = ANY (p.polroles)),
 coalesce('security_invoker=true' = ANY (c.reloptions) OR 'security_invoker=on' = ANY (c.reloptions), false)
 FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
 AND has_table_privilege('meterplex_tenant', c.oid, 'SELECT')
 AND (EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id') OR c.relname = 'tenants') ORDER BY 1`
	// Every table with tenants' rows forces row level security.
	keptTablesSQL = `SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity FROM pg_class c
 JOIN unnest($1::text[]) AS t (name) ON t.name = c.relname WHERE c.relnamespace = 'public'::regnamespace ORDER BY 1`
	roleSQL = `SELECT r.rolname, r.rolsuper, r.rolbypassrls, r.rolcreaterole, r.rolcanlogin,
 coalesce((SELECT string_agg(c.relname, ', ') FROM pg_class c WHERE c.relowner = r.oid AND c.relnamespace = 'public'::regnamespace), ''),
 coalesce((SELECT string_agg(g.rolname, ', ') FROM pg_roles g WHERE g.oid <> r.oid AND pg_has_role(r.oid, g.oid, 'MEMBER')), '')
 FROM pg_roles r WHERE r.rolname IN ('meterplex_worker', 'meterplex_tenant') ORDER BY 1`
	rightsSQL = `SELECT t.name, r.role, p.privilege FROM unnest($1::text[]) AS t (name)
 CROSS JOIN unnest(ARRAY['meterplex_worker', 'meterplex_tenant', 'public']) AS r (role)
 CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'REFERENCES']) AS p (privilege)
 WHERE to_regclass('public.' || t.name) IS NOT NULL AND
  has_table_privilege(r.role, to_regclass('public.' || t.name), p.privilege)`
	columnsSQL = `SELECT a.attrelid::regclass::text, a.attname FROM pg_attribute a
 WHERE a.attrelid IN ('public.event_log'::regclass, 'public.event_log_rows'::regclass) AND a.attnum > 0 AND NOT a.attisdropped
 AND has_column_privilege('meterplex_worker', a.attrelid, a.attnum, 'UPDATE')`
)

// tenantTables returns the tables on which the migrations force row level security.
func tenantTables() []string {
	return []string{"event_log", "tenants", "api_keys", "subscriptions", "subscription_history", "idempotency_answers", "usage_aggregates",
		"entitlement_grants", "entitlement_usage", "dead_letter_events", "projection_pointers", "projection_generations"}
}

func (v *verifier) rowSecurity(ctx context.Context) error {
	var name string
	var view, forced, policy, invoker bool
	err := each(ctx, v.log, tenantTablesSQL, nil, []any{&name, &view, &forced, &policy, &invoker}, func() error {
		v.rls.n++
		if view {
			v.rls.expect(invoker, "tenants may read the view %s with its owner's rights", name)
			return nil
		}
		// The broker's positions have no tenant_id: they hold no tenant's data.
		v.rls.expect(forced && policy, "tenants may read %s without forced row level security (forced %v, policy %v)", name, forced, policy)
		return nil
	})
	if err == nil {
		err = each(ctx, v.log, keptTablesSQL, []any{tenantTables()}, []any{&name, &forced}, func() error {
			v.rls.expect(forced, "%s does not force row level security", name)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("check row level security: %w", err)
	}
	v.rls.done = true
	return nil
}

// allowed reports whether a role may make a change to a table that must not be altered.
func allowed(role, table, privilege string) bool {
	if role != "meterplex_worker" {
		return false
	}
	switch privilege {
	case "INSERT":
		return table != "log_heads"
	case "UPDATE":
		return table == "log_heads"
	}
	return false
}

func (v *verifier) rights(ctx context.Context) error {
	var name, owns, in string
	var super, bypass, makes, login bool
	err := each(ctx, v.log, roleSQL, nil, []any{&name, &super, &bypass, &makes, &login, &owns, &in}, func() error {
		v.grants.n++
		v.grants.expect(!super && !bypass && !makes, "%s is a superuser, bypasses row level security or may create roles", name)
		v.grants.expect(!login, "%s can log in", name)
		v.grants.expect(owns == "", "%s owns %s", name, owns)
		v.grants.expect(in == "", "%s is a member of %s", name, in)
		return nil
	})
	if err != nil {
		return fmt.Errorf("check the roles: %w", err)
	}
	v.grants.expect(v.grants.n == 2, "%d of the roles meterplex_worker and meterplex_tenant exist", v.grants.n)
	var table, privilege string
	immutable := []string{"event_log", "event_log_rows", "log_epochs", "log_heads", "log_identity", "log_origins", "log_vocabularies", "subscription_history"}
	err = each(ctx, v.log, rightsSQL, []any{immutable}, []any{&table, &name, &privilege}, func() error {
		v.grants.expect(allowed(name, table, privilege), "%s may %s %s", name, privilege, table)
		return nil
	})
	if err == nil {
		err = each(ctx, v.log, columnsSQL, nil, []any{&table, &name}, func() error {
			v.grants.fault("meterplex_worker may UPDATE the column %s of %s", name, table)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("check the rights on the log: %w", err)
	}
	v.grants.note("on %s", strings.Join(immutable, ", "))
	v.grants.done = true
	return nil
}

// pointersSQL derives from the flips which pointer a tenant's period uses; the column live must
// agree. A live generation needs 32 serving checkpoints, one of a single tenant needs 1.
const (
	pointersSQL = `SELECT p.projection, p.tenant_id::text, p.period_key, p.generation, p.live,
 p.undone_flip IS NULL AND NOT EXISTS (SELECT FROM projection_pointers o WHERE o.projection = p.projection AND o.flip > p.flip AND o.undone_flip IS NULL
   AND o.tenant_id IN (p.tenant_id, '00000000-0000-0000-0000-000000000000') AND o.period_key IN (p.period_key, '')),
 g.generation IS NOT NULL, g.dropped_at IS NULL AND NOT coalesce(g.purged, true), coalesce(g.broken, ''),
 (SELECT count(*) FROM consumer_checkpoints c WHERE c.consumer = $1::jsonb ->> p.projection AND c.generation = p.generation AND c.joined AND c.serving),
 CASE WHEN g.tenant_id = '00000000-0000-0000-0000-000000000000' THEN 32 ELSE 1 END
 FROM projection_pointers p LEFT JOIN projection_generations g USING (projection, generation) ORDER BY p.projection, p.flip`
	consumersOf = `{"usage_aggregates": "meterplex-usage-aggregator", "entitlement_reads": "meterplex-entitlement-reads", "dead_letter_events": "meterplex-dead-letter-handler"}`
	everyone    = "00000000-0000-0000-0000-000000000000"
)

func (v *verifier) generations(ctx context.Context) error {
	whole := map[string]int{"usage_aggregates": 0, "entitlement_reads": 0, "dead_letter_events": 0}
	err := v.snapshot(ctx, func(tx pgx.Tx) error {
		var projection, tenant, period, broken string
		var generation, fed, feeds int
		var live, follows, there, stays bool
		return each(ctx, tx, pointersSQL, []any{consumersOf}, []any{&projection, &tenant, &period, &generation, &live, &follows, &there, &stays, &broken, &fed, &feeds}, func() error {
			name := fmt.Sprintf("generation %d of %s", generation, projection)
			v.generation.expect(live == follows, "the pointer to %s has live %v, the flips give %v", name, live, follows)
			if !live {
				return nil
			}
			if tenant == everyone && period == "" {
				whole[projection]++
			}
			v.generation.expect(there, "readers see %s, which does not exist", name)
			if there {
				v.generation.expect(stays && broken == "", "readers see %s, which is dropped or broken %s", name, broken)
				v.generation.expect(fed >= feeds, "readers see %s, which is served in %d of %d partitions", name, fed, feeds)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("check the pointers: %w", err)
	}
	for projection, n := range whole {
		v.generation.n++
		v.generation.expect(n == 1, "%d generations of %s are live for all tenants", n, projection)
	}
	v.generation.done = true
	return nil
}
