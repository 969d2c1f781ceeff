package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/must"
)

// partitionOf is the log partition of a tenant.
func partitionOf(tenant string) int { return int(sha256.Sum256([]byte(tenant))[0] % 32) }

// planted is an inconsistency in a copy of the database or on the topics, and the check that finds it.
type planted struct {
	check  string // "": it is sound
	sql    string
	by     func(w *deployment)
	args   string // "": of the database, of the first tenant's partition
	also   string // a check that compares the same rows with something else
	during string // SQL, while verify watches
}

// plants has at least one row for each check of verify on the database and the topics. In braces are the first tenant and its partition
// {p}, the offboarded one and its partition {q}, and the one with repaired figures. Rows on topics have a partition each: no record can be
// removed again.
func plants(w *deployment, tenants []*tenant) []planted {
	p, q := partitionOf(tenants[0].id), partitionOf(tenants[1].id)
	anywhere, ended := fmt.Sprint("--only database --partition ", 0), fmt.Sprint("--only database --partition ", q)
	rows := slices.Concat(plantsInLog(), plantsInFigures(), plantsInLimits(), plantsInPeriods(), plantsInBilling(anywhere),
		plantsInOffboarding(ended),
		plantsInRights(), plantsOnTopics(w, tenants))
	replacer := strings.NewReplacer("{p}", fmt.Sprint(p), "{tenant}", "'"+tenants[0].id+"'", "{q}", fmt.Sprint(q), "{ended}",
		"'"+tenants[1].id+"'",
		"{repaired}", "'"+tenants[2].id+"'", "{elsewhere}", idOutside(p), "{month}", month(), "{tenants[0]}", tenants[0].id)
	for n := range rows {
		rows[n].sql, rows[n].during, rows[n].args = replacer.Replace(rows[n].sql), replacer.Replace(rows[n].during),
			replacer.Replace(rows[n].args)
		rows[n].args = cmp.Or(rows[n].args, fmt.Sprint("--only database --partition ", p))
	}
	return rows
}

// idOutside returns the id of a tenant in another partition.
func idOutside(p int) string {
	id := uuid.New()
	for partitionOf(id.String()) == p {
		id = uuid.New()
	}
	return "'" + id.String() + "'"
}

// at selects the row of the log at a position of the first tenant's partition.
func at(position string) string { return ` WHERE partition = {p} AND position = ` + position }

// first is the position of the first event of a subject in the first tenant's partition.
func first(subject int) string {
	return fmt.Sprintf(`(SELECT min(position) FROM event_log_rows WHERE partition = {p} AND subject = %d)`, subject)
}

// payload sets a member of the payload of a row of the log.
func payload(name, value, where string) string {
	return fmt.Sprintf(`UPDATE event_log_rows SET body = jsonb_set(body::jsonb, '{%s}', '%s')::json%s`, name, value, where)
}

// validUsage is the position of the first usage with a verdict, and neither rejected nor in conflict.
const validUsage = `(SELECT min(a::bigint) FROM (SELECT position::text AS a FROM event_log_rows WHERE partition = {p} AND subject = 1
 INTERSECT SELECT substr(dedupe_key, 3) FROM event_log_rows WHERE partition = {p} AND subject = 2 AND dedupe_key LIKE 'v/%'
 EXCEPT SELECT body ->> 'rawPosition' FROM event_log_rows WHERE partition = {p} AND subject IN (3, 4)) c)`

// usageAt is the position of an event of usage, and verdictOn that of its verdict.
func usageAt(id string) string {
	return `(SELECT position FROM event_log_rows WHERE partition = {p} AND dedupe_key = 'u/` + id + `')`
}

func verdictOn(id string) string {
	return `(SELECT position FROM event_log_rows WHERE partition = {p} AND dedupe_key = 'v/' || ` + usageAt(id) + `)`
}

func plantsInLog() []planted {
	const verdicts, contents = "P3 each recorded event up to the validator's checkpoint has one result",
		"P3 each result matches its recorded event"
	const corrections = "P5 each correction is counted once, by its target, and not after a retraction"
	// The log stores a verdict on a correction as an array: its third member is the event's id, its eighth has the amount before.
	before := func(amount, where string) string {
		return `UPDATE event_log_rows SET body = regexp_replace(body::text, '"before":[0-9]+', '"before":` + amount + `')::json` + where
	}
	correction := ` WHERE position = ` + verdictOn("corrected-2") + ` AND target = ` + usageAt("correctable")
	const last = `(SELECT max(position) FROM event_log_rows WHERE partition = {p} AND subject = 5)`
	return []planted{
		{check: "P1 positions run from 1 to the head without a gap",
			sql: `UPDATE log_heads SET position = position + 1 WHERE partition = {p}`},
		{check: "P10 events are in the order in which they were recorded",
			sql: `UPDATE event_log_rows SET recorded_at = recorded_at + interval '1 hour'` + at(validUsage)},
		{check: "P9 each event is in its tenant's partition and on its subject's topic", sql: `UPDATE event_log_rows SET tenant_id =
 {elsewhere}` + at(first(5))},
		{check: "P2 each dedupe key is stored once for a tenant", sql: `ALTER TABLE event_log DROP CONSTRAINT event_log_dedupe;
 UPDATE event_log_rows SET dedupe_key = (SELECT dedupe_key FROM event_log_rows` + at(validUsage) + `)` + at(first(4))},
		{check: "P4 stored hashes match the payloads", sql: `UPDATE event_log_rows SET hash = '\x01'::bytea || sha256('another')` +
			at(validUsage)},
		{check: "P3 the counters of the heads match the rows", sql: `UPDATE log_heads SET accepted = accepted + 1 WHERE partition = {p}`},
		{check: "P1 recorded events do not change and no position decreases", args: "--only database --partition {p} --watch 1s",
			during: `UPDATE event_log_rows SET event_id = gen_random_uuid()` + at(last)},
		{check: verdicts, sql: `UPDATE event_log_rows SET body = jsonb_set(body::jsonb, '{rawPosition}', to_jsonb(` + validUsage +
			`))::json` +
			at(first(3))},
		{check: contents, sql: payload("0", "987654", at(validUsage))},
		{check: contents, sql: payload("2", `"told"`, at(verdictOn("corrected-2")))},
		{check: corrections, sql: before("41", at(verdictOn("corrected-1")))}, // the target has 40
		{check: corrections, sql: before("1", at(verdictOn("retracted")))},
		{check: corrections, sql: `UPDATE usage_corrections SET after = after + 1` + correction},
		{check: corrections, sql: `DELETE FROM usage_corrections` + correction},
		{check: corrections, sql: `INSERT INTO usage_corrections
 SELECT tenant_id, target, n + 7, cause, position, kind, before, after FROM usage_corrections` + correction},
	}
}

func plantsInFigures() []planted {
	const usage, applied = "P5 usage_aggregates equals the sum of the log up to its checkpoint",
		"P3 consumed results = applied + dead-lettered + withheld"
	const series, letters = "P5 usage_series equals the sum of the log up to its checkpoint, hour by hour",
		"P3 dead letters and their states match the log"
	one := func(projection string) string {
		return ` WHERE (tenant_id, feature) IN (SELECT tenant_id, feature FROM usage_aggregates WHERE generation = 1
			AND partition = {p} ORDER BY
 1, 2 LIMIT 1)
 AND generation = live_generation('` + projection + `', tenant_id)`
	}
	region := func(amount, events int, value string) string {
		return fmt.Sprintf(`UPDATE usage_series SET amount = amount + %d, event_count = event_count + %d
 WHERE generation = live_generation('usage_series', tenant_id) AND partition = {p} AND group_values = '{"region":"%s"}';`, amount, events,
			value)
	}
	const repaired, letter = ` WHERE tenant_id = {repaired} AND feature = 'api_calls' AND generation > 1`, ` WHERE id = (SELECT id FROM
 dead_letter_events
 WHERE generation = 1 AND partition = {p} AND stage = 'INGESTION' LIMIT 1)`
	return []planted{
		{check: "P1 no checkpoint is beyond the head",
			sql: `UPDATE consumer_checkpoints SET position = position + 1000000 WHERE consumer = 'meterplex-command-handler'
				AND partition = {p}`},
		{check: usage, also: "P8 each figure of a closed period is its frozen figure and its adjustments",
			sql: `UPDATE usage_aggregates SET amount = amount + 1` + one("usage_aggregates")},
		{check: usage, args: "--only database", sql: `UPDATE usage_aggregates SET amount = amount + 1` + repaired},
		{check: applied, args: "--only database", sql: `UPDATE usage_aggregates SET applied_count = applied_count + 1` + repaired},
		{check: applied, sql: `UPDATE usage_aggregates SET applied_count = applied_count - 1` + one("usage_aggregates")},
		{check: "P5 entitlement_usage equals the sum of the log up to its checkpoint",
			sql: `UPDATE entitlement_usage SET used = used - 1` + one("entitlement_reads")},
		{check: series, sql: `UPDATE usage_series SET amount = amount + 1` + one("usage_series")},
		// from one group of an hour to another
		{check: series, sql: region(1, 0, "eu") + region(-1, 0, "us")},
		// as if "us" had come too late
		{check: series, sql: `DELETE FROM usage_series_values WHERE value = 'us';` + region(2, 1, "other") + region(-2, -1, "us")},
		{check: "P8 usage_by_grant equals the sum of the results that name a grant", sql: `INSERT INTO usage_by_grant
 SELECT generation, partition, tenant_id, feature, period_key, subscription_id, 1, amount, event_count, applied_count
 FROM usage_aggregates` + one("usage_aggregates")},
		{check: "P12 running totals equal the sums of the log up to their positions", sql: `INSERT INTO usage_running_totals
 SELECT generation, partition, tenant_id, feature, period_key, (SELECT min(position) FROM consumer_checkpoints
 WHERE generation = 1 AND partition = {p} AND consumer = 'meterplex-usage-aggregator'), subscription_id, amount + 1, event_count,
 last_event_at
 FROM usage_aggregates` + one("usage_aggregates") +
			` ON CONFLICT (generation, tenant_id, feature, period_key, position, subscription_id) DO UPDATE SET amount = excluded.amount`},
		{check: "P5 usage_refusals equals the sum of the log up to its checkpoint",
			sql: `INSERT INTO usage_refusals (generation, partition, tenant_id, code, feature, count, first_at, last_at, samples)
 SELECT 1, {p}, tenant_id, 'planted', '', 1, now(), now(), '[]' FROM usage_aggregates WHERE generation = 1 AND partition = {p} LIMIT 1`},
		{check: letters, sql: `UPDATE dead_letter_events SET status = 'RESOLVED'` + letter},
		{check: letters, sql: `UPDATE dead_letter_counts SET failed = failed + 1 WHERE generation = 1 AND partition = {p} AND slot = -1`},
		{check: "P5 each projection has one set of live rows for all tenants",
			sql: `UPDATE projection_pointers SET generation = 77 WHERE projection = 'usage_aggregates'`},
	}
}

func plantsInLimits() []planted {
	const accounts, grants = "P7 quota_accounts equal the grants, the results and the reservations in the log",
		"P7 no grant passes a HARD limit, and each records its account"
	const crossings = "P7 each threshold is crossed once for each period and value, by the event that rises to it"
	const reservations = "P7 the reservations in the table are those of the log"
	const account = ` WHERE feature = 'calls' AND tenant_id IN (SELECT tenant_id FROM event_log_rows WHERE partition = {p} AND subject = 8)`
	return []planted{
		{check: accounts, sql: `UPDATE quota_accounts SET used = used + 1` + account},
		{check: accounts, sql: `UPDATE quota_accounts SET held = held + 1` + account},
		{check: grants, sql: payload("admitted,used", "3", at(first(8)))},
		{check: grants, sql: payload("held", "3", at(first(60)))},
		{check: crossings, sql: payload("before", `"3"`, at(first(65)))},
		{check: ofCatalogue, sql: `UPDATE thresholds SET amount = amount + 1` + account},
		{check: "P5 entitlement_usage equals the sum of the log up to its checkpoint",
			sql: `UPDATE entitlement_usage SET held = held - 1` + account +
				` AND generation = live_generation('entitlement_reads', tenant_id)`},
		{check: "P7 each reservation is held once and ends once", sql: payload("expiresAt", `"2100-01-01T00:00:00Z"`, at(first(63)))},
		{check: reservations, sql: `UPDATE reservations SET committed = committed + 1` + account + ` AND state = 'COMMITTED'`},
		{check: reservations, sql: `DELETE FROM reservations WHERE reservation_id = 'stays' AND tenant_id = {tenant}`},
	}
}

// plantsInPeriods are in the closed period of the first tenant.
func plantsInPeriods() []planted {
	const figures = "P8 each closed period has the figures that its events froze, with their hash"
	const adjustments = "P8 each late result is one adjustment, and each event counts in the frozen figure or as an adjustment"
	const states = "P8 the states of adjustments follow from the decisions, reopenings and discards in the log"
	const snapshot = ` WHERE tenant_id = {tenant} AND snapshot = 1`
	const line, commit = snapshot + ` AND feature = 'grouped'`, snapshot + ` AND source_event_id = 'late-commit'`
	const frozen = ` WHERE partition = {p} AND tenant_id = {tenant} AND subject = 71 AND body ->> 'snapshot' = '1'`
	const inFrozen = `(SELECT body #>> '{lines,0,%s}' FROM event_log_rows` + frozen + `)`
	return []planted{
		{check: figures, sql: `UPDATE period_lines SET amount = amount + 1` + line},
		{check: figures, sql: `UPDATE period_snapshots SET figures_hash = 'x' || figures_hash` + snapshot},
		{check: figures, sql: `UPDATE period_snapshots SET cut = cut - 1` + snapshot},
		{check: figures, sql: `DELETE FROM period_lines` + line},
		{check: figures, sql: `DELETE FROM period_snapshots` + snapshot},
		{check: figures, sql: `DELETE FROM period_changes` + snapshot + ` AND change = 'reopened'`},
		// another figure, with its hash, in the log and in the tables
		{check: "P8 each frozen figure is the sum of the results that were caused up to its cut",
			sql: `UPDATE event_log_rows SET body = jsonb_set(body::jsonb, '{lines,0,amount}', to_jsonb((body #>> '{lines,0,amount}') ||
 '0'))::json` + frozen + `;
 UPDATE period_lines SET amount = amount * 10` + snapshot + ` AND feature = ` + fmt.Sprintf(inFrozen, "feature") +
				` AND subscription_id::text = ` + fmt.Sprintf(inFrozen, "subscriptionId") + `;
 UPDATE period_snapshots s SET figures_hash = encode(sha256(convert_to(format(
 '{"cut":"{p}-%s","lines":[%s],"logic":"usage_aggregates/v1","periodKey":"%s","snapshot":1,"tenantId":"%s"}', cut, (SELECT string_agg(
 format('{"amount":"%s","eventCount":%s,"feature":"%s","subscriptionId":"%s"}', l ->> 'amount', l ->> 'eventCount', l ->> 'feature', l ->>
 'subscriptionId'), ',' ORDER BY n)
 FROM event_log_rows e, json_array_elements(e.body -> 'lines') WITH ORDINALITY AS lines(l, n)` + frozen + `), period_key, tenant_id),
 'UTF8')), 'hex')` + snapshot + `;
 UPDATE event_log_rows SET body = jsonb_set(body::jsonb, '{figuresHash}', to_jsonb((SELECT figures_hash FROM period_snapshots` + snapshot +
				`)))::json` +
				strings.Replace(frozen, "71", "72", 1)},
		{check: adjustments, sql: `UPDATE adjustments SET amount = amount + 1` + commit},
		{check: adjustments, sql: `UPDATE adjustments SET kind = 'RETRY'` + commit},
		{check: "P8 each frozen charge follows from its figure, its grant and the version of its price",
			sql: `UPDATE period_charges SET amount = amount + 1` + snapshot},
		{check: adjustments, sql: `DELETE FROM adjustments` + commit},
		{check: adjustments, sql: `INSERT INTO adjustments SELECT gen_random_uuid(), tenant_id, period_key, snapshot, feature,
			subscription_id,
 kind, amount,
 event_count, position, recorded + 1000000, source_event_id, rebuild_id, state, reason, decided FROM adjustments` + commit},
		{check: states, sql: `UPDATE adjustments SET state = 'WAIVED'` + commit},
		{check: states, sql: `UPDATE adjustments SET decided = decided + 1` + commit},
		{check: states, sql: `UPDATE adjustments SET state = 'PENDING'` + snapshot + ` AND source_event_id = 'late-fix'`},
		// the proposal of a difference that no line has
		{check: "P8 each figure of a closed period is its frozen figure and its adjustments",
			sql: `INSERT INTO event_log_rows SELECT h.position + 1, h.topic_positions[7], h.recorded_at, l.occurred_at, s.tenant_id,
				l.tenant_id,
 l.correlation_id,
 l.causation_id, h.epoch, l.origin, l.partition, 7, 74, 'j/planted', NULL, json_build_object('adjustmentId', s.tenant_id, 'periodKey',
 s.period_key, 'snapshot', 2,
 'feature', s.feature, 'subscriptionId', s.subscription_id, 'kind', 'REBUILD', 'amount', '3', 'eventCount', 0, 'flip', 1), NULL
 FROM log_heads h JOIN period_lines s ON s.tenant_id = {tenant} AND s.snapshot = 2 AND s.feature = 'grouped' CROSS JOIN LATERAL (SELECT *
 FROM event_log_rows l
 WHERE l.partition = h.partition AND l.tenant_id = s.tenant_id AND l.topic = 7 ORDER BY l.position DESC LIMIT 1) l WHERE h.partition = {p};
 INSERT INTO adjustments SELECT tenant_id, tenant_id, period_key, 2, feature, subscription_id, 'REBUILD', 3, 0, h.position + 1, h.position +
 1, NULL, NULL,
 'PENDING', NULL, NULL FROM period_lines s JOIN log_heads h ON h.partition = {p} WHERE s.tenant_id = {tenant} AND s.snapshot = 2 AND
 s.feature = 'grouped';
 UPDATE log_heads SET position = position + 1, topic_positions[7] = position + 1 WHERE partition = {p}`},
	}
}

const ofCatalogue = "P5 the rows of the catalogue follow from the log"

// plantsInBilling are in the pushes, webhooks and prices of the first tenant, which has no pushes.
func plantsInBilling(anywhere string) []planted {
	const pushes = "P8 the Stripe deliveries of each closed period are its billable figure, and each is delivered once"
	const failures = "P8 the failures of Stripe deliveries and the differences to the provider's totals are those of the log"
	const hooks = "P3 each event that a webhook selects has one delivery, and each delivery an event of its tenant"
	const hook = ` WHERE tenant_id = {tenant}`
	push := func(period, n, state, failures string) string {
		key := `'{tenants[0]}:grouped:` + period + `:1'`
		return `INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier,
 counted_at, state, attempts,
 failures, stored_at, delivered_at, last_code) VALUES ({tenant}, {tenant}, 'grouped', '` + period + `', 1, ` + n + `, 3, 'stripe', 'cus_9',
 'grouped', ` + key + `,
 'mp_' || left(encode(sha256(convert_to(` + key + `, 'UTF8')), 'hex'), 40), now(), '` + state + `', 1, ` + failures + `, now(),
 CASE WHEN '` + state + `' = 'DELIVERED' THEN now() END, CASE WHEN '` + state + `' = 'FAILED' THEN 'refused' ELSE '' END)`
	}
	return []planted{
		{check: pushes, sql: push("{month}", "0", "DELIVERED", "0")}, // without an event
		{check: pushes, sql: push("{month}", "1", "PENDING", "0")},   // under the key of the first
		// A saga of the last snapshot stored no push of the billable figure.
		{check: pushes, also: ofCatalogue,
			sql: `UPDATE tenants SET billing_provider = 'stripe', billing_customer = 'cus_1' WHERE id = {tenant};
 INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, created_at, ended_at, outcome) SELECT tenant_id, 'billing_push',
 tenant_id,
 'close/' || period_key || '/' || max(snapshot), 'send', 'COMPLETED', now(), now(), now(), 'success' FROM period_snapshots WHERE tenant_id =
 {tenant}
 GROUP BY tenant_id, period_key ORDER BY count(*) DESC LIMIT 1`},
		{check: failures, sql: push("2001-01", "0", "FAILED", "1")},
		{check: failures, sql: push("2001-01", "0", "FAILED", "0")},
		{check: failures, sql: push("2001-01", "0", "PENDING", "0") + `;
 INSERT INTO push_comparisons VALUES ('stripe', 'cus_9', 'grouped', '{month}', 5, 3, now())`},
		{check: hooks, sql: `UPDATE webhook_deliveries SET type = 'push.failed'` + hook + ` AND type = 'period.closed'`},
		{check: hooks, sql: `UPDATE webhook_attempts SET status = 500` + hook + ` AND status = 200`},
		{check: hooks, sql: `UPDATE webhook_attempts SET n = 3` + hook + ` AND n = 2`},
		{check: hooks, sql: `UPDATE webhooks SET cursor = cursor + 1000000` + hook},
		{check: hooks, sql: `DELETE FROM webhook_deliveries` + hook + ` AND type = 'period.closed'`},
		{check: ofCatalogue, args: anywhere, sql: `DELETE FROM prices`},
		{check: ofCatalogue, args: anywhere, sql: `UPDATE prices SET currency = 'USD' WHERE key = 'tiered'`},
		{check: ofCatalogue, args: anywhere, sql: `UPDATE features SET unit = unit || 'x'`},
		{check: ofCatalogue, args: anywhere, sql: `UPDATE plans SET entitlements = '[]'`},
		{check: ofCatalogue, sql: `UPDATE webhooks SET url = url || '/'` + hook},
		{check: ofCatalogue, sql: `UPDATE api_keys SET scopes = scopes || '{billing:close}'` + hook},
		{check: ofCatalogue, sql: `UPDATE tenants SET class = 'large' WHERE id = {tenant}`},
		{check: ofCatalogue, sql: `DELETE FROM subscription_history` + hook},
	}
}

func plantsInOffboarding(args string) []planted {
	const check, of = "P8 each offboarding follows its steps, keeps what its manifest lists, and ends the tenant's keys and usage", ` WHERE
 tenant_id = {ended}`
	return []planted{
		{check: check, args: args, sql: `UPDATE offboardings SET state = 'RUNNING', ended_at = NULL` + of},
		{check: check, args: args, sql: `UPDATE offboardings SET manifest = manifest || ' '` + of},
		{check: check, args: args, sql: `UPDATE offboardings SET drained_to = 1` + of},
		{check: ofCatalogue, also: check, args: args, sql: `UPDATE tenants SET status = 'SUSPENDED' WHERE id = {ended}`},
		{check: ofCatalogue, also: check, args: args, sql: `UPDATE api_keys SET revoked_at = NULL` + of},
		{check: check, args: args,
			sql: `UPDATE event_log_rows SET body = replace(body::text, '"step":"drained"', '"step":"closed"')::json` + of +
				` AND partition = {q} AND subject = 80 AND body ->> 'step' = 'drained'`}, // the other bytes stay
	}
}

func plantsInRights() []planted {
	return []planted{
		{check: "P9 row level security is forced on every table that tenants read", sql: `ALTER TABLE usage_aggregates NO FORCE ROW LEVEL
 SECURITY`},
		{check: "P6 the roles of the service own no object and cannot alter the log",
			sql: `GRANT UPDATE ON event_log_rows TO meterplex_worker`},
		{check: "P10 each partition is leased by one live relay",
			sql: `INSERT INTO relay_instances VALUES ('ghost', now() + interval '1 hour')`},
		{check: "no session of the service is idle in a transaction", args: "--only database --idle 1ms", by: func(w *deployment) {
			address, err := pgx.ParseConfig(w.db)
			must.OK(w.t, err)
			address.RuntimeParams["application_name"] = "meterplex"
			c, err := pgx.ConnectConfig(w.t.Context(), address)
			must.OK(w.t, err)
			w.t.Cleanup(func() { _ = c.Close(context.Background()) })
			_, err = c.Exec(w.t.Context(), "BEGIN")
			must.OK(w.t, err)
		}},
	}
}

func plantsOnTopics(w *deployment, tenants []*tenant) []planted {
	const topics, same = "P11 the topics hold the same events as the log", "P11 each record equals its event byte for byte"
	const order = "P10 events of a tenant are first published in the order of the log"
	const withheld = `INSERT INTO withheld_records (partition, position, topic, tenant_id, reason, late, dead_letter_id)
 SELECT partition, position, topic, tenant_id, 'planted', %s FROM event_log_rows WHERE partition = %d AND topic = 1 ORDER BY position LIMIT
 1`
	var p [6]int
	var args [6]string
	for n := range p {
		p[n] = partitionOf(tenants[n].id)
		args[n] = fmt.Sprint("--only database,topics --partition ", p[n])
	}
	origin := func(set string, topic int) string { // of the partition's first event on a topic
		return fmt.Sprintf(`UPDATE log_origins o SET %s WHERE id = (SELECT origin FROM event_log_rows WHERE partition = %d
			AND topic = %d ORDER BY
 position LIMIT 1)`,
			set, p[1], topic)
	}
	copied := func(n int, change func(*kgo.Record)) func(*deployment) {
		return func(*deployment) { produceCopy(w, p[n], change) }
	}
	return []planted{
		{check: topics, args: args[0], sql: `INSERT INTO event_log_rows SELECT h.position + 1, h.topic_positions[4], h.recorded_at,
			l.occurred_at,
 gen_random_uuid(),
 l.tenant_id, l.correlation_id, l.causation_id, h.epoch, l.origin, l.partition, l.topic, l.subject, 'e/planted', l.hash, l.body, l.replay
 FROM log_heads h JOIN event_log_rows l ON l.partition = h.partition AND l.position = h.topic_positions[4] WHERE h.partition = {p};
 UPDATE log_heads SET position = position + 1, topic_positions[4] = position + 1 WHERE partition = {p};
 UPDATE relay_cursors SET position = position + 1 WHERE partition = {p}`}, // the relay's cursor is behind the event
		{check: same, args: args[1], sql: `WITH other AS (INSERT INTO log_vocabularies SELECT encode(sha256(convert_to(d, 'UTF8')), 'hex'),
			d
 FROM (SELECT replace(document, '"version":1', '"version":2') FROM log_vocabularies) AS x (d) RETURNING hash)
` + origin(`vocabulary = (SELECT hash FROM other)`, 6)},
		{check: same, args: args[1], sql: origin(`residency = 'elsewhere'`, 1)},
		{check: same, args: args[1], sql: origin(`via = 'console'`, 1)},
		{args: args[1], sql: `DELETE FROM outbox_publications`}, // they have expired
		{check: same, args: args[1], by: copied(1, func(r *kgo.Record) {
			r.Value = bytes.Replace(r.Value, []byte(`"amount":`),
				[]byte(`"amount":1`), 1)
		})},
		{check: order, args: args[2], by: copied(2, func(r *kgo.Record) { deleteUpTo(w, r) })},
		{check: topics, args: args[3], by: copied(3, func(r *kgo.Record) {
			n := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == "mp-position" })
			r.Headers[n].Value = fmt.Appendf(nil, "%d-99999999", p[3])
		})},
		// the first two records in the other order, below the relay's position before a rewind
		{check: order, args: args[4], by: copied(4, func(r *kgo.Record) {
			deleteUpTo(w, r)
			produceCopy(w, p[4], func(r *kgo.Record) { deleteUpTo(w, r) })
		}), sql: fmt.Sprintf(`UPDATE relay_cursors SET furthest = position WHERE partition = %d`, p[4])},
		// A stand-in for an event with a verdict is sound if it is late.
		{args: args[5], sql: fmt.Sprintf(withheld, "true, NULL", p[5]), by: copied(5, func(r *kgo.Record) {
			r.Value, r.Headers = nil, append(r.Headers, kgo.RecordHeader{Key: "mp-withheld", Value: []byte("1")})
		})},
		{check: "P3 each recorded event up to the validator's checkpoint has one result", args: fmt.Sprint("--only database --partition ",
			p[5]),
			sql: fmt.Sprintf(withheld, "false, tenant_id", p[5])},
		{check: same, args: args[5]},
	}
}

// plant plants a row into a copy of the database, which has no sessions, and requires that verify finds it there by its check alone.
func plant(w *deployment, p planted) {
	w.t.Helper()
	config := w.sql.Config()
	original := config.ConnConfig.Database
	name := original + "_planted"
	config.ConnConfig.Database = "postgres"
	server, err := pgx.ConnectConfig(w.t.Context(), config.ConnConfig)
	must.OK(w.t, err)
	defer server.Close(context.Background())
	_, err = server.Exec(w.t.Context(), `CREATE DATABASE `+name+` OWNER meterplex TEMPLATE `+original)
	must.OK(w.t, err)
	defer func() {
		_, err := server.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`)
		must.OK(w.t, err)
	}()
	address, err := url.Parse(w.db)
	must.OK(w.t, err)
	address.Path = "/" + name
	config.ConnConfig.Database = name
	c := &deployment{t: w.t, db: address.String(), prefix: w.prefix, pipe: w.pipe, operator: w.operator, http: w.http, cluster: w.cluster}
	c.sql, err = pgxpool.NewWithConfig(w.t.Context(), config)
	must.OK(w.t, err)
	defer c.sql.Close()
	if tag, err := c.sql.Exec(w.t.Context(), cmp.Or(p.sql, "SELECT")); err != nil || strings.HasPrefix(tag.String(), "UPDATE 0") ||
		strings.HasSuffix(tag.String(), " 0 0") {
		w.t.Fatalf("plant for %q: %v %v\n%s", p.check, tag, err, p.sql)
	}
	if p.by != nil {
		p.by(c)
	}
	args := strings.Fields(p.args)
	if !slices.Contains(args, "--watch") {
		args = append(args, "--watch", "0s")
	}
	change := func() { _, err := c.sql.Exec(w.t.Context(), cmp.Or(p.during, "SELECT")); must.OK(w.t, err) }
	found := verifyWith(c, nil, change, args...)
	if p.during != "" && found.code == 0 { // the change may have come after the watch
		args[slices.Index(args, "--watch")+1] = "20s"
		found = verifyWith(c, nil, change, args...)
	}
	var want []string
	for _, check := range []string{p.check, p.also} {
		if check != "" {
			want = append(want, check)
		}
	}
	if names := found.failedChecks(); found.code != min(len(want), 1) || !slices.Equal(names, want) {
		w.t.Errorf("planted for %q, found: %q\n%s\n%s", p.check, names, p.sql, found.String())
	}
}

// produceCopy produces a changed copy of the first record of usage.raw.
func produceCopy(w *deployment, partition int, change func(*kgo.Record)) {
	w.t.Helper()
	topic := w.prefix + "usage.raw"
	c := w.kafka(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().AtStart()}}),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	fetched := c.PollRecords(w.t.Context(), 1)
	if err := fetched.Err(); err != nil || fetched.NumRecords() != 1 {
		w.t.Fatalf("read a record of %s/%d: %v", topic, partition, err)
	}
	first := fetched.Records()[0]
	r := &kgo.Record{Topic: topic, Partition: int32(partition), Key: first.Key, Value: first.Value, Headers: first.Headers,
		Offset: first.Offset}
	change(r)
	must.OK(w.t, c.ProduceSync(w.t.Context(), r).FirstErr())
}

// deleteUpTo deletes a record and those before it, as retention does.
func deleteUpTo(w *deployment, r *kgo.Record) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	var upTo kadm.Offsets
	upTo.Add(kadm.Offset{Topic: r.Topic, Partition: r.Partition, At: r.Offset + 1})
	answers, err := kadm.NewClient(c).DeleteRecords(w.t.Context(), upTo)
	if err == nil {
		err = answers.Error()
	}
	must.OK(w.t, err)
}

// trigger calls do when a text is written.
type trigger struct {
	io.Writer
	on   string
	once sync.Once
	do   func()
}

func (x *trigger) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(x.on)) {
		x.once.Do(x.do)
	}
	return x.Writer.Write(b)
}
