package store

import (
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// fold is a statement by which an event changes rows. It names @event, the payload, and the event's @tenant, @partition, @position and
// time, @at.
type fold string

// folds has the folds of each subject whose events change rows of the catalogue, in their order. The rows follow from the log: a fold reads
// only its event, and rows that events before it made. Three things are not of the log: the hashes of keys' secrets,
// tenant_external_ids, which holds each id of the tenants once, and the state of the deliveries of webhooks.
var folds = map[events.Subject][]fold{
	events.TenantCreated:       {foldTenant},
	events.TenantChanged:       {foldPolicy, foldTenant},
	events.APIKeyCreated:       {foldKeys},
	events.APIKeyRotated:       {foldKeys},
	events.APIKeyRevoked:       {foldKeys},
	events.FeatureDefined:      {foldGrouping, foldFeature},
	events.PlanDefined:         {foldPlan},
	events.PriceDefined:        {foldPrice},
	events.SubscriptionCreated: {foldHistory, foldSubscription},
	events.SubscriptionChanged: {foldHistory, foldSubscription},
	events.ThresholdChanged:    {foldThreshold, foldRemoval},
	events.WebhookChanged:      {foldWebhook},
}

// fold queues the changes that an event makes to the rows of its noun.
func (t *Tx) fold(e *events.Pending, at events.Position) {
	list := folds[e.Subject]
	if list != nil {
		t.concerns(e.TenantID)
	}
	for _, f := range list {
		t.Queue("row of the catalogue", string(f), pgx.NamedArgs{"event": e.Payload, "tenant": e.TenantID, "partition": at.Partition,
			"position": at.Number, "at": e.OccurredAt})
	}
}

// foldPolicy notes a change of the policy by which verdicts are decided. It sees the tenant before the change.
const (
	foldPolicy fold = `INSERT INTO tenant_policies (tenant_id, from_position, late_usage, close_after_hours)
SELECT t.id, @position::bigint, e."lateUsage", e."closeAfterHours"
FROM json_to_record(@event::json) AS e (id uuid, "lateUsage" text, "closeAfterHours" int) JOIN tenants t ON t.id = e.id
WHERE (t.late_usage, t.close_after_hours) IS DISTINCT FROM (e."lateUsage", e."closeAfterHours")`

	foldTenant fold = `INSERT INTO tenants (id, name, class, status, mode, data_residency, created_at, external_ids, metadata, late_usage,
		close_after_hours,
 billing_provider, billing_customer, erased_at)
SELECT id, name, class, status, mode, "dataResidency", "createdAt", coalesce("externalIds", '{}'), coalesce(metadata, '{}'), "lateUsage",
"closeAfterHours",
 billing ->> 'provider', billing ->> 'customer', "erasedAt"
FROM json_to_record(@event::json) AS e (id uuid, name text, class text, status text, mode text, "dataResidency" text,
"createdAt" timestamptz, "externalIds" text[],
 metadata jsonb, "lateUsage" text, "closeAfterHours" int, billing json, "erasedAt" timestamptz)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, class = excluded.class, status = excluded.status,
data_residency = excluded.data_residency,
 external_ids = excluded.external_ids, metadata = excluded.metadata, late_usage = excluded.late_usage,
 close_after_hours = excluded.close_after_hours,
 billing_provider = excluded.billing_provider, billing_customer = excluded.billing_customer, erased_at = excluded.erased_at`
)

// foldKeys takes the key of the event, or the two of a rotation. A key that is revoked at the time of the event or earlier has ended,
// whatever clock another instance has.
const foldKeys fold = `INSERT INTO api_keys (id, tenant_id, name, prefix, mode, scopes, created_at, expires_at, revoked_at, ended)
SELECT e.id, "tenantId", name, prefix, mode, scopes, "createdAt", "expiresAt", "revokedAt", coalesce("revokedAt" <= @at::timestamptz, false)
FROM (VALUES (@event::json), (@event::json -> 'new'), (@event::json -> 'old')) AS k (key) CROSS JOIN LATERAL
 json_to_record(k.key) AS e (id uuid, "tenantId" uuid, name text, prefix text, mode text, scopes text[], "createdAt" timestamptz,
 "expiresAt" timestamptz, "revokedAt" timestamptz)
WHERE e.id IS NOT NULL
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at, revoked_at = excluded.revoked_at, ended = excluded.ended`

const (
	// foldGrouping begins a grouping: at the time that the event names, or with all usage of a new feature.
	foldGrouping fold = `INSERT INTO feature_groupings (feature, since, keys)
SELECT e."lookupKey", coalesce(e."groupBySince", '0001-01-01T00:00:00Z'), coalesce(e."groupBy", '{}')
FROM json_to_record(@event::json) AS e ("lookupKey" text, "groupBy" text[], "groupBySince" timestamptz)
WHERE e."groupBySince" IS NOT NULL OR e."groupBy" <> '{}' AND NOT EXISTS (SELECT FROM features f WHERE f.lookup_key = e."lookupKey")`

	foldFeature fold = `INSERT INTO features (` + featureColumns + `)
SELECT "lookupKey", name, type, coalesce(unit, ''), coalesce("groupBy", '{}'), coalesce("billingEvent", '')
FROM json_to_record(@event::json) AS e ("lookupKey" text, name text, type text, unit text, "groupBy" text[], "billingEvent" text)
ON CONFLICT (lookup_key) DO UPDATE SET name = excluded.name, type = excluded.type, unit = excluded.unit, group_by = excluded.group_by,
billing_event = excluded.billing_event`

	foldPlan fold = `INSERT INTO plans (` + planColumns + `)
SELECT key, name, entitlements FROM json_to_record(@event::json) AS e (key text, name text, entitlements json)
ON CONFLICT (key) DO UPDATE SET name = excluded.name, entitlements = excluded.entitlements`

	foldPrice fold = `INSERT INTO prices (` + priceColumns + `)
SELECT key, version, name, currency, model, "microUnits", coalesce("packageSize", 0), coalesce(tiers, '[]')
FROM json_to_record(@event::json) AS e (key text, version bigint, name text, currency text, model text, "microUnits" bigint,
"packageSize" bigint, tiers json)`
)

const (
	// foldHistory writes the snapshot in force from the event on, if the subscription is, or was. It sees the subscription before the
	// change. The change counts from its time on, but not before the start of the subscription, unless it ends it.
	foldHistory fold = `INSERT INTO subscription_history (tenant_id, from_position, effective_from, snapshot)
SELECT e."tenantId", @position::bigint, CASE WHEN s.id IS NULL OR f.in_force
AND e."startsAt" >= @at::timestamptz THEN e."startsAt" ELSE @at::timestamptz END,
 CASE WHEN f.in_force THEN (@event::json::jsonb - 'reason')::json END
FROM json_to_record(@event::json) AS e (id uuid, "tenantId" uuid, status text, "startsAt" timestamptz)
CROSS JOIN LATERAL (SELECT e.status IN ('ACTIVE', 'TRIALING') AS in_force) f LEFT JOIN subscriptions s ON s.id = e.id
WHERE f.in_force OR s.status IN ('ACTIVE', 'TRIALING')`

	foldSubscription fold = `INSERT INTO subscriptions (` + subscriptionColumns + `)
SELECT id, "tenantId", plan, status, entitlements, "startsAt", "createdAt"
FROM json_to_record(@event::json) AS e (id uuid, "tenantId" uuid, plan text, status text, entitlements json, "startsAt" timestamptz,
"createdAt" timestamptz)
ON CONFLICT (id) DO UPDATE SET plan = excluded.plan, status = excluded.status, entitlements = excluded.entitlements`
)

const (
	foldThreshold fold = `INSERT INTO thresholds (` + thresholdColumns + `)
SELECT id, "tenantId", feature, percent, amount, @position::bigint, "createdAt"
FROM json_to_record(@event::json) AS e (id uuid, "tenantId" uuid, feature text, percent bigint, amount bigint, "createdAt" timestamptz,
removed boolean) WHERE removed IS NOT TRUE`

	foldRemoval fold = `UPDATE thresholds t SET removed = @position::bigint
FROM json_to_record(@event::json) AS e (id uuid, removed boolean) WHERE t.id = e.id AND e.removed`
)

// foldWebhook leaves the state of the deliveries alone: a new webhook considers the events behind its own.
const foldWebhook fold = `INSERT INTO webhooks (id, tenant_id, partition, url, events, status, reason, operators, created_at, cursor)
SELECT id, "tenantId", @partition::smallint, url, events, status, coalesce("disabledFor", ''), coalesce(operators, false), "createdAt",
@position::bigint
FROM json_to_record(@event::json) AS e (id uuid, "tenantId" uuid, url text, events text[], status text, "disabledFor" text,
operators boolean, "createdAt" timestamptz)
ON CONFLICT (id) DO UPDATE SET url = excluded.url, events = excluded.events, status = excluded.status, reason = excluded.reason,
operators = excluded.operators`
