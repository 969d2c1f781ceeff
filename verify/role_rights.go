package verify

import (
	"context"
	"fmt"
	"strings"
)

// The server itself computes a role's privileges, including those from PUBLIC.
const (
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
		v.roleRights.n++
		v.roleRights.expect(!super && !bypass && !makes, "%s is a superuser, bypasses row level security or may create roles", name)
		v.roleRights.expect(!login, "%s can log in", name)
		v.roleRights.expect(owns == "", "%s owns %s", name, owns)
		v.roleRights.expect(in == "", "%s is a member of %s", name, in)
		return nil
	})
	if err != nil {
		return fmt.Errorf("check the roles: %w", err)
	}
	v.roleRights.expect(v.roleRights.n == 2, "%d of the roles meterplex_worker and meterplex_tenant exist", v.roleRights.n)
	var table, privilege string
	immutable := []string{"event_log", "event_log_rows", "log_epochs", "log_heads", "log_identity", "log_origins", "log_vocabularies",
		"subscription_history"}
	err = each(ctx, v.log, rightsSQL, []any{immutable}, []any{&table, &name, &privilege}, func() error {
		v.roleRights.expect(allowed(name, table, privilege), "%s may %s %s", name, privilege, table)
		return nil
	})
	if err == nil {
		err = each(ctx, v.log, columnsSQL, nil, []any{&table, &name}, func() error {
			v.roleRights.fault("meterplex_worker may UPDATE the column %s of %s", name, table)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("check the rights on the log: %w", err)
	}
	v.roleRights.note("on %s", strings.Join(immutable, ", "))
	v.roleRights.done = true
	return nil
}
