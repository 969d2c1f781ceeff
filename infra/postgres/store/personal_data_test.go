package store

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/must"
)

// personalData lists the columns with personal data of tenants, and what an erasure does to each.
var personalData = map[string]string{
	"event_log.body": "erase_events", "event_log.hash": "erase_events", "event_log.dedupe_key": "erase_events: the hash of a content in it",
	"event_log_rows.body": "erase_events", "event_log_rows.hash": "erase_events", "event_log_rows.dedupe_key": "erase_events",
	"tenants.name": "the step tenant", "tenants.external_ids": "the step tenant", "tenants.metadata": "the step tenant", "tenant_external_ids.external_id": "the step tenant: its rows are deleted",
	"usage_series.group_values": "pseudonyms", "usage_series_values.value": "pseudonyms",
	"dead_letter_events.payload": "as the event", "dead_letter_events.details": "the hashes of a conflict", "dead_letter_events.reason": "that of a refused message",
	"dead_letter_events.fingerprint": "follows from the reason", "dead_letter_counts.fingerprint": "follows from the reason",
	"usage_refusals.samples": "without payloads", "projection_rebuilds.report": "without the tenant's rows",
	"idempotency_answers.body": "erase_answers", "idempotency_answers.request_hash": "erase_answers",
	"reporting_usage.tenant": "a view", "reporting_closed_usage.tenant": "a view", "reporting_adjustments.tenant": "a view", "reporting_dead_letters.tenant": "a view",
	"reporting_dead_letters.reason": "a view", "inbox.event_id": "a view of dedupe_key",
	"erasures.key": "gone with the end",
}

// noPersonalData lists all other columns of texts, documents and bytes, by the reason.
var noPersonalData = map[string]string{
	"names that operators and producers define once for all tenants, and numbers as text": `
features.* plans.* prices.* price_versions.* feature_groupings.* subscriptions.* subscription_history.* log_vocabularies.* required_migrations.*
usage_aggregates.* usage_running_totals.* usage_by_grant.* entitlement_grants.* entitlement_usage.* quota_accounts.* thresholds.* tenant_policies.*
period_changes.* period_snapshots.* period_lines.* period_charges.* usage_corrections.* adjustments.kind adjustments.state adjustments.period_key adjustments.feature
usage_series.feature usage_series_values.feature usage_series_values.key usage_refusals.code usage_refusals.feature
dead_letter_events.stage dead_letter_events.status dead_letter_events.code dead_letter_events.feature dead_letter_events.topic dead_letter_counts.topic
reporting_usage.* reporting_closed_usage.* reporting_adjustments.feature reporting_adjustments.feature_name reporting_adjustments.unit reporting_adjustments.period reporting_adjustments.kind
reporting_adjustments.state reporting_dead_letters.stage reporting_dead_letters.status reporting_dead_letters.code reporting_dead_letters.feature
tenants.class tenants.status tenants.data_residency tenants.late_usage tenants.mode tenants.billing_provider`,
	"the service's own state": `
log_origins.* log_epochs.* consumer_checkpoints.* projection_generations.* projection_pointers.* rebuild_units.* relay_cursors.* relay_instances.* instances.* outbox_events.* withheld_records.*
projection_rebuilds.projection projection_rebuilds.consumer projection_rebuilds.fold_version projection_rebuilds.purpose projection_rebuilds.period_key projection_rebuilds.state projection_rebuilds.failure
replays.kind replays.consumer replays.target replays.state replays.failure sagas.kind sagas.key sagas.step sagas.state sagas.missing sagas.despite sagas.last_error sagas.outcome
offboardings.state offboardings.step offboardings.closed offboardings.manifest erasures.state erasures.place event_log.replay event_log_rows.replay inbox.consumer`,
	"random secrets and hashes of them": `api_keys.secret_hash api_keys.prefix console_sessions.* console_links.* webhook_secrets.*`,
	"texts that an operator or the tenant's client chose for other purposes, and that stay (docs/personal-data.md)": `
api_keys.name api_keys.mode api_keys.scopes offboardings.reason offboardings.actor offboardings.cancel_reason offboardings.cancel_actor erasures.reason erasures.actor
replays.reason projection_rebuilds.reason sagas.last_reason sagas.last_actor adjustments.reason adjustments.source_event_id reporting_adjustments.reason reporting_adjustments.source_event_id
dead_letter_events.producer_event_id reporting_dead_letters.event_id reservations.* idempotency_answers.key
tenants.billing_customer pushes.* push_comparisons.* webhooks.* webhook_deliveries.* webhook_attempts.*`,
}

// Each column of a text, a document or bytes is known to be erased, or to hold no personal data of tenants: a new table or column is decided on here.
func TestP6_EachColumnIsErasedOrHasNoPersonalData(t *testing.T) {
	_, _, _, url := openStore(t)
	known := map[string]bool{}
	for _, list := range noPersonalData {
		for _, name := range strings.Fields(list) {
			known[name] = false
		}
	}
	rows, err := asOwner(t, url).Query(`SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0 AND NOT a.attisdropped
  AND (t.typcategory IN ('S', 'A', 'X', 'E') OR t.typname IN ('json', 'jsonb', 'bytea', 'xml')) AND t.typname NOT IN ('_int8', '_uuid') ORDER BY 1, 2`)
	must.OK(t, err)
	defer rows.Close()
	found := map[string]bool{}
	for rows.Next() {
		var table, column string
		must.OK(t, rows.Scan(&table, &column))
		name := table + "." + column
		found[name], found[table+".*"] = true, true
		_, erased := personalData[name]
		_, kept := known[name]
		_, all := known[table+".*"]
		switch {
		case erased && kept:
			t.Errorf("%s is in both lists", name)
		case !erased && !kept && !all:
			t.Errorf("%s: does it hold personal data of tenants? An erasure erases it (personalData), or it holds none (noPersonalData, with the reason); docs/personal-data.md", name)
		}
	}
	must.OK(t, rows.Err())
	for name := range known {
		if !found[name] {
			t.Errorf("%s is listed, and does not exist", name)
		}
	}
	for name := range personalData {
		if !found[name] {
			t.Errorf("%s is listed, and does not exist", name)
		}
	}
}

// The function that changes the log changes personal data of an archived tenant whose erasure runs, and nothing else.
func TestP6_TheServiceErasesNothingElse(t *testing.T) {
	_, l, pool, _ := openStore(t)
	tenant := uuid.Must(uuid.NewV7())
	event := usageEvent(tenant, "one", 1)
	at := submit(t, l, tenant, event)[0].Position
	erase := func(key string, hash []byte, body string) error {
		_, err := pool.Exec(t.Context(), eraseEventsSQL, tenant, at.Partition, []int64{at.Number}, []string{key}, [][]byte{hash}, []string{body})
		return err
	}
	var body, key string
	must.OK(t, pool.QueryRow(t.Context(), `SELECT body::text, dedupe_key FROM event_log_rows WHERE partition = $1 AND position = $2`, at.Partition, at.Number).Scan(&body, &key))
	refused := func(what string, err error) {
		t.Helper()
		if postgres.SQLState(err) != "42501" {
			t.Errorf("%s: %v", what, err)
		}
	}
	tables := func(status, state string) {
		t.Helper()
		must.Exec(t, pool, `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'A', 'small', $2, now()) ON CONFLICT (id) DO UPDATE SET status = excluded.status`, tenant, status)
		must.Exec(t, pool, `INSERT INTO erasures (id, tenant_id, saga_id, state, reason, actor, requested_at, key, ended_at) VALUES ($1, $1, $1, $2, 'r', 'a', now(), CASE $2 WHEN 'RUNNING' THEN '\x01'::bytea END, CASE $2 WHEN 'ERASED' THEN now() END)
 ON CONFLICT (id) DO UPDATE SET state = excluded.state, key = excluded.key, ended_at = excluded.ended_at`, tenant, state)
	}
	refused("without an erasure", erase(key, nil, body))
	tables("ACTIVE", "RUNNING")
	refused("an active tenant", erase(key, nil, body))
	tables("ARCHIVED", "ERASED")
	refused("an ended erasure", erase(key, nil, body))
	tables("ARCHIVED", "RUNNING")
	for what, other := range map[string]string{"the amount": `[2,"f"]`, "the feature": `[1,"other"]`, "the source": `[1,"f",null,"/x"]`, "the form": `{"amount":1}`} {
		refused(what, erase(key, nil, other))
	}
	refused("the key", erase("u/two", nil, body))
	refused("a hash", erase(key, []byte{1}, body))
	_, err := pool.Exec(t.Context(), eraseEventsSQL, tenant, at.Partition, []int64{at.Number + 1}, []string{key}, [][]byte{nil}, []string{body})
	refused("another position", err)
	other := uuid.Must(uuid.NewV7())
	_, err = pool.Exec(t.Context(), eraseEventsSQL, other, at.Partition, []int64{at.Number}, []string{key}, [][]byte{nil}, []string{body})
	refused("another tenant", err)
	must.OK(t, erase(key, nil, strings.TrimSuffix(body, "]")+`,{"region":"x"}]`))
	for _, sql := range []string{`UPDATE event_log_rows SET body = body`, `DELETE FROM event_log_rows`, `SELECT kept_members(1::smallint, '[]')`} {
		_, err := pool.Exec(t.Context(), sql)
		refused(sql, err)
	}
}
