package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// members are those of an event, or of a row, by name.
type members map[string]json.RawMessage

// catalogueRow names a row of a table of the catalogue.
type catalogueRow struct{ table, key string }

func (r catalogueRow) String() string { return fmt.Sprintf("the row %.80s of %s", r.key, r.table) }

// catalogueTables read each row's key, tenant, and members by the names that its events have.
var catalogueTables = []struct{ name, sql string }{
	{"tenants", `SELECT id::text, tenant_id, json_build_object('name', name, 'class', class, 'status', status, 'mode', mode,
		'dataResidency', data_residency,
 'createdAt', created_at, 'externalIds', external_ids, 'metadata', metadata, 'lateUsage', late_usage, 'closeAfterHours', close_after_hours,
 'erasedAt', erased_at,
 'billing', CASE WHEN billing_provider IS NOT NULL THEN json_build_object('provider', billing_provider, 'customer', billing_customer) END)
 FROM (SELECT id AS tenant_id, * FROM tenants) t`},
	{"tenant_policies", `SELECT tenant_id || '/' || from_position, tenant_id, json_build_object('lateUsage', late_usage, 'closeAfterHours',
		close_after_hours)
 FROM tenant_policies`},
	{"api_keys", `SELECT id::text, tenant_id, json_build_object('tenantId', tenant_id, 'name', name, 'prefix', prefix, 'mode', mode,
		'scopes', scopes,
 'createdAt', created_at, 'expiresAt', expires_at, 'revokedAt', revoked_at, 'ended', ended) FROM api_keys`},
	{"features", `SELECT lookup_key, tenant_id, json_build_object('name', name, 'type', type, 'unit', unit, 'groupBy', group_by,
		'billingEvent', billing_event)
 FROM (SELECT '00000000-0000-0000-0000-000000000000'::uuid AS tenant_id, * FROM features) f`},
	{"feature_groupings", `SELECT feature || '/' || extract(epoch FROM since)::numeric(30, 6), tenant_id, json_build_object('groupBy', keys)
 FROM (SELECT '00000000-0000-0000-0000-000000000000'::uuid AS tenant_id, * FROM feature_groupings) g`},
	{"plans", `SELECT key, tenant_id, json_build_object('name', name, 'entitlements', entitlements)
 FROM (SELECT '00000000-0000-0000-0000-000000000000'::uuid AS tenant_id, * FROM plans) p`},
	{"prices", `SELECT key || '/' || version, tenant_id, json_build_object('name', name, 'currency', currency, 'model', model, 'microUnits',
		micro_units,
 'packageSize', nullif(package_size, 0), 'tiers', tiers) FROM (SELECT '00000000-0000-0000-0000-000000000000'::uuid AS tenant_id, *
 FROM prices) p`},
	{"subscriptions", `SELECT id::text, tenant_id, json_build_object('tenantId', tenant_id, 'plan', plan, 'status', status, 'entitlements',
		entitlements,
 'startsAt', starts_at, 'createdAt', created_at) FROM subscriptions`},
	{"subscription_history", `SELECT tenant_id || '/' || from_position, tenant_id, json_build_object('snapshot', snapshot, 'effectiveAt',
		effective_from)
 FROM subscription_history`},
	{"thresholds", `SELECT id::text, tenant_id, json_build_object('tenantId', tenant_id, 'feature', feature, 'percent', percent,
 'amount', amount, 'position', position, 'removed', removed, 'createdAt', created_at) FROM thresholds`},
	{"webhooks", `SELECT id::text, tenant_id, json_build_object('tenantId', tenant_id, 'url', url, 'events', events, 'status', status,
		'disabledFor', reason,
 'operators', operators, 'createdAt', created_at) FROM webhooks`},
}

// addCatalogue notes the rows that an event of the catalogue changes.
func (x *pass) addCatalogue(r *row, _ *content, _ error) {
	if r.subject < tenantCreated || r.subject > priceDefined && r.subject != thresholdChanged && r.subject != webhookChanged {
		return
	}
	var e members
	if err := json.Unmarshal(r.body, &e); err != nil {
		x.catalogued.fault("%s cannot be read: %v", x.at(r.position), err)
		return
	}
	last := func(table, key string) members { return x.catalogue[catalogueRow{table, key}] }
	want := func(table, key string, m members) { x.catalogue[catalogueRow{table, key}] = m }
	at := fmt.Sprintf("%s/%d", r.tenant, r.position)
	switch r.subject {
	case tenantCreated, tenantChanged:
		id := e.text("id")
		if was := last("tenants", id); was != nil && !(was.same("lateUsage", e) && was.same("closeAfterHours", e)) {
			want("tenant_policies", at, e)
		}
		want("tenants", id, e)
	case keyCreated, keyRotated, keyRevoked:
		for _, k := range []members{e, e.object("new"), e.object("old")} {
			if id := k.text("id"); id != "" {
				revoked, err := time.Parse(time.RFC3339Nano, k.text("revokedAt"))
				k.set("ended", err == nil && !revoked.After(moment(r.occurred)))
				want("api_keys", id, k)
			}
		}
	case featureDefined:
		key := e.text("lookupKey")
		since, given := time.Parse(time.RFC3339Nano, e.text("groupBySince"))
		if given == nil || last("features", key) == nil && e.value("groupBy") != "null" {
			want("feature_groupings", fmt.Sprintf("%s/%d.%06d", key, since.Unix(), since.Nanosecond()/1000), e)
		}
		want("features", key, e)
	case planDefined:
		want("plans", e.text("key"), e)
	case priceDefined:
		want("prices", e.text("key")+"/"+e.value("version"), e)
	case subscriptionCreated, subscriptionChanged:
		id := e.text("id")
		was := last("subscriptions", id)
		starts, _ := time.Parse(time.RFC3339Nano, e.text("startsAt"))
		effective := moment(r.occurred)
		if was == nil || e.inForce() && !starts.Before(effective) {
			effective = starts
		}
		if h := (members{}); e.inForce() || was.inForce() {
			if h.set("effectiveAt", effective); e.inForce() {
				delete(e, "reason")
				h.set("snapshot", e)
			}
			want("subscription_history", at, h)
		}
		want("subscriptions", id, e)
	case thresholdChanged:
		id := e.text("id")
		if was := last("thresholds", id); e.value("removed") != "null" && was != nil {
			was.set("removed", r.position)
			return
		}
		delete(e, "removed")
		e.set("position", r.position)
		want("thresholds", id, e)
	case webhookChanged:
		want("webhooks", e.text("id"), e)
	}
}

// compareCatalogue compares the rows with the events. While personal data is being erased, the tenant's row and its events change one after
// the other.
func (x *pass) compareCatalogue(ctx context.Context, tx pgx.Tx) error {
	for _, table := range catalogueTables {
		var key string
		var tenant uuid.UUID
		var is members
		seen := map[string]bool{}
		err := each(ctx, tx, table.sql+ofPartition, []any{x.p}, []any{&key, &tenant, &is}, func() error {
			seen[key] = true
			if !x.erased.runs(tenant) {
				x.compareRow(catalogueRow{table.name, key}, is)
			}
			is = nil
			return nil
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", table.name, err)
		}
		for r := range x.catalogue {
			x.catalogued.expect(r.table != table.name || seen[r.key], "%s is missing; the log has its event", r)
		}
	}
	return nil
}

func (x *pass) compareRow(r catalogueRow, is members) {
	x.catalogued.n++
	was := x.catalogue[r]
	if was == nil {
		x.catalogued.fault("%s has no event in the log", r)
		return
	}
	for name := range is {
		x.catalogued.expect(is.same(name, was), "%s has the %s %.120s, in the log %.120s", r, name, is.value(name), was.value(name))
	}
}

// inForce reports whether verdicts are taken from a subscription.
func (m members) inForce() bool {
	return m.text("status") == "ACTIVE" || m.text("status") == "TRIALING"
}

func (m members) set(name string, value any) {
	m[name], _ = json.Marshal(value) // of values that have a form
}

func (m members) text(name string) (s string) {
	_ = json.Unmarshal(m[name], &s) // "" if it is no text
	return s
}

func (m members) object(name string) (o members) {
	_ = json.Unmarshal(m[name], &o) // nil if it is no object
	return o
}

func (m members) same(name string, other members) bool { return m.value(name) == other.value(name) }

// value returns a member in one form: an empty or missing one is null, and times are in UTC.
func (m members) value(name string) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(m[name]))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return "null"
	}
	switch value := v.(type) {
	case string:
		if at, err := time.Parse(time.RFC3339Nano, value); err == nil && strings.HasSuffix(name, "At") {
			v = at.UTC()
		}
		if value == "" {
			v = nil
		}
	case bool:
		if !value {
			v = nil
		}
	case []any:
		if len(value) == 0 {
			v = nil
		}
	case map[string]any:
		if len(value) == 0 {
			v = nil
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
