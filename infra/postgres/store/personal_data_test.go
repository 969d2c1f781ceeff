package store

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// personalData lists the columns with personal data of tenants, and what an erasure does to each.
var personalData = map[string]string{
	"event_log.body": "erase_events", "event_log.hash": "erase_events", "event_log.dedupe_key": "erase_events: the hash of a content in it",
	"event_log_rows.body": "erase_events", "event_log_rows.hash": "erase_events", "event_log_rows.dedupe_key": "erase_events",
	"tenants.name": "the step tenant", "tenants.external_ids": "the step tenant", "tenants.metadata": "the step tenant",
	"tenant_external_ids.external_id": "the step tenant: its rows are deleted",
	"usage_series.group_values":       "groups without values", "usage_series_values.value": "its rows are deleted",
	"dead_letter_events.payload": "as the event", "dead_letter_events.details": "the hashes of a conflict",
	"dead_letter_events.reason":      "as the event",
	"dead_letter_events.fingerprint": "follows from the reason", "dead_letter_counts.fingerprint": "follows from the reason",
	"withheld_records.reason": "erase_events", "usage_refusals.samples": "without payloads",
	"projection_rebuilds.report": "without the tenant's rows",
	"idempotency_answers.body":   "erase_answers", "idempotency_answers.request_hash": "erase_answers",
	"reporting_usage.tenant": "a view", "reporting_closed_usage.tenant": "a view", "reporting_adjustments.tenant": "a view",
	"reporting_dead_letters.tenant": "a view",
	"reporting_dead_letters.reason": "a view", "inbox.event_id": "a view of dedupe_key",
}

// noPersonalData lists all other columns of texts, documents and bytes, by the reason.
var noPersonalData = map[string]string{
	"names that operators and producers define once for all tenants, and numbers as text": `
features.* plans.* prices.* feature_groupings.* subscriptions.* subscription_history.* log_vocabularies.* required_migrations.*
usage_aggregates.* usage_running_totals.* usage_by_grant.* entitlement_grants.* entitlement_usage.* quota_accounts.* thresholds.*
tenant_policies.*
period_changes.* period_snapshots.* period_lines.* period_charges.* usage_corrections.* adjustments.kind adjustments.state
adjustments.period_key adjustments.feature
usage_series.feature usage_series_values.feature usage_series_values.key usage_refusals.code usage_refusals.feature
dead_letter_events.stage dead_letter_events.status dead_letter_events.code dead_letter_events.feature dead_letter_events.topic
dead_letter_counts.topic
reporting_usage.* reporting_closed_usage.* reporting_adjustments.feature reporting_adjustments.feature_name reporting_adjustments.unit
reporting_adjustments.period reporting_adjustments.kind
reporting_adjustments.state reporting_dead_letters.stage reporting_dead_letters.status reporting_dead_letters.code
reporting_dead_letters.feature
tenants.class tenants.status tenants.data_residency tenants.late_usage tenants.mode tenants.billing_provider`,
	"the service's own state": `
log_origins.* log_epochs.* consumer_checkpoints.* projection_generations.* projection_pointers.* rebuild_units.* relay_cursors.*
relay_instances.* instances.* outbox_events.*
projection_rebuilds.projection projection_rebuilds.consumer projection_rebuilds.fold_version projection_rebuilds.purpose
projection_rebuilds.period_key projection_rebuilds.state projection_rebuilds.failure
replays.kind replays.consumer replays.target replays.state replays.failure sagas.kind sagas.key sagas.step sagas.state sagas.missing
sagas.despite sagas.last_error sagas.outcome
offboardings.state offboardings.step offboardings.closed offboardings.manifest erasures.state erasures.place event_log.replay
event_log_rows.replay inbox.consumer`,
	"random secrets and hashes of them": `api_keys.secret_hash api_keys.prefix console_sessions.* console_links.* webhook_secrets.*`,
	"texts that an operator or the tenant's client chose for other purposes, and that stay (docs/reference/personal-data.md)": `
api_keys.name api_keys.mode api_keys.scopes offboardings.reason offboardings.actor offboardings.cancel_reason offboardings.cancel_actor
erasures.reason erasures.actor
replays.reason projection_rebuilds.reason sagas.last_reason sagas.last_actor adjustments.reason adjustments.source_event_id
reporting_adjustments.reason reporting_adjustments.source_event_id
dead_letter_events.producer_event_id reporting_dead_letters.event_id reservations.* idempotency_answers.key
tenants.billing_customer pushes.* push_comparisons.* webhooks.* webhook_deliveries.* webhook_attempts.*`,
}

// Each column of a text, a document or bytes is known to be erased, or to hold no personal data of tenants: a new table or column is
// decided on here.
func TestP6_EachColumnIsErasedOrHasNoPersonalData(t *testing.T) {
	_, _, _, url := openStore(t)
	known := map[string]bool{}
	for _, list := range noPersonalData {
		for _, name := range strings.Fields(list) {
			known[name] = false
		}
	}
	rows, err := asOwner(t, url).Query(`SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		JOIN pg_type t ON t.oid = a.atttypid
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0 AND NOT a.attisdropped
  AND (t.typcategory IN ('S', 'A', 'X', 'E') OR t.typname IN ('json', 'jsonb', 'bytea', 'xml')) AND t.typname NOT IN ('_int8', '_uuid')
  ORDER BY 1, 2`)
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
			t.Errorf("%s: does it hold personal data of tenants? An erasure erases it (personalData), or it holds none (noPersonalData, "+
				"with the reason); docs/reference/personal-data.md", name)
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

// Personal data leaves the body of each subject, whatever was sent; all other bytes stay, and a second erasure has no effect.
func TestP6_BodiesAreErased(t *testing.T) {
	_, _, pool, _ := openStore(t)
	erased := func(subject events.Subject, body string) (got string) {
		t.Helper()
		must.OK(t, pool.QueryRow(t.Context(), `SELECT erased_body($1, $2)`, subject, body).Scan(&got))
		return got
	}
	zeros := strings.Repeat("0", 64)
	for _, c := range []struct {
		subject    events.Subject
		body, want string
	}{
		{events.UsageRecorded, `[1,"f"]`, `[1,"f"]`},
		{events.UsageRecorded, `[1,"f",{"user":"ann"}]`, `[1,"f"]`},
		{events.UsageRecorded, `[1,"f",{"user":"ann"},"/x"]`, `[1,"f",null,"/x"]`},
		{events.UsageRecorded, `{"feature":"f","metadata":{"a":1},"x":"<&>\"\\","n":5.0}`, `{"feature":"f","x":"<&>\"\\","n":5.0}`},
		{events.UsageRetried, `{"rawPosition":1,"usage":{"amount":1,"metadata":{"a":1}}}`, `{"rawPosition":1,"usage":{"amount":1}}`},
		{events.UsageConflicted,
			`{"firstHash":"aa","conflictHash":"bb","payload":{"amount":1e200000,"amount":5,"metadata":{"a":"\\u0000"}}}`,
			`{"firstHash":"` + zeros + `","conflictHash":"` + zeros + `","payload":{"amount":1e200000,"amount":5}}`},
		{events.UsageConflicted, `{"payload":"ann"}`, `{"payload":null}`},
		{events.UsageConflicted, `{"payload":["ann"]}`, `{"payload":null}`},
		{events.UsageRetried, `{"usage":["ann",1,2,3]}`, `{"usage":null}`},
		{events.UsageRefused,
			`{"code":"c","reason":"\"ann\"","pointer":"/metadata/ann","eventId":"\\u0000\ud83d","payload":{"a\u0000":"\ud83d"},"bytes":3}`,
			`{"code":"c","reason":"erased","eventId":"\\u0000\ud83d","bytes":3}`},
		{events.RefusalsSeen, `{"count":2,"samples":[{"eventId":"a","payload":"ann\u0000"},{"code":"c"}]}`,
			`{"count":2,"samples":[{"eventId":"a"},{"code":"c"}]}`},
		{events.RefusalsSeen, `{"samples":["ann"]}`, `{"samples":[null]}`},
		{events.PublishFailed,
			`{"sourceSubject":"meterplex.usage.event.recorded.v1","reason":"r","payload":{"amount":1e200000,"metadata":{"a":"\ud83d"}}}`,
			`{"sourceSubject":"meterplex.usage.event.recorded.v1","reason":"erased","payload":{"amount":1e200000}}`},
		{events.PublishFailed, `{"sourceSubject":"meterplex.catalogue.tenant.created.v1","payload":{"name":"Ann","class":"small"}}`,
			`{"sourceSubject":"meterplex.catalogue.tenant.created.v1","payload":{}}`},
		{events.AggregationFailed, `{"sourceSubject":"subject 999","payload":{"eventId":"e","feature":"f","who":"ann"}}`,
			`{"sourceSubject":"subject 999","payload":{"eventId":"e","feature":"f"}}`},
		{events.AggregationFailed, `{"sourceSubject":"meterplex.usage.event.validated.v1","payload":{"amount":1,"name":"n"}}`,
			`{"sourceSubject":"meterplex.usage.event.validated.v1","payload":{"amount":1,"name":"n"}}`},
		{events.AggregationFailed, `{"sourceSubject":"x","payload":["ann"]}`, `{"sourceSubject":"x","payload":null}`},
		{events.PublishFailed, `{"sourceSubject":"meterplex.usage.event.retried.v1","payload":"ann"}`,
			`{"sourceSubject":"meterplex.usage.event.retried.v1","payload":null}`},
		{events.AggregationFailed, `{"sourceSubject":"x","payload":null}`, `{"sourceSubject":"x","payload":null}`},
		{events.TenantChanged, `{"id":"i","name":"Ann","class":"small","externalIds":["crm"],"metadata":{"a":"b"},"reason":"r"}`,
			`{"id":"i","name":"erased","class":"small","reason":"r"}`},
		{events.FeatureDefined, `{"name":"Calls"}`, `{"name":"Calls"}`},
	} {
		got := erased(c.subject, c.body)
		if again := erased(c.subject, got); got != c.want || again != got {
			t.Errorf("%s of subject %d is\n%s, then\n%s, want\n%s", c.body, c.subject, got, again, c.want)
		}
	}
	for _, info := range events.Subjects() {
		whole, err := os.ReadFile("../../../events/testdata/" + info.Name() + ".json")
		must.OK(t, err)
		localtest.CheckPayloads(t).Written(1, func(int) (events.Subject, []byte) {
			return info.Subject, []byte(erased(info.Subject, string(whole)))
		})
	}
}

// The function that changes the log erases events of an archived tenant whose erasure was requested, as the log says, and runs. No other
// statement changes the log.
func TestP6_TheServiceErasesNothingElse(t *testing.T) {
	s, l, pool, _ := openStore(t)
	tenant := uuid.Must(uuid.NewV7())
	event := usageEvent(tenant, "one", 1)
	event.Payload = []byte(`[1,"f",{"user":"ann"}]`)
	at := submit(t, l, tenant, event)[0].Position
	erase := func() error {
		_, err := pool.Exec(t.Context(), `SELECT erase_events($1, $2, 0, 100, NULL)`, tenant, at.Partition)
		_, also := pool.Exec(t.Context(), `SELECT erase_answers($1, $2, '', 100)`, tenant, at.Partition)
		if postgres.SQLState(err) != postgres.SQLState(also) {
			t.Errorf("events: %v; answers: %v", err, also)
		}
		return err
	}
	refused := func(what string, err error) {
		t.Helper()
		if postgres.SQLState(err) != "42501" {
			t.Errorf("%s: %v", what, err)
		}
	}
	tables := func(status, state string) {
		t.Helper()
		must.Exec(t, pool, `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'A', 'small', $2, now()) ON CONFLICT (id)
			DO UPDATE SET status = excluded.status`, tenant, status)
		must.Exec(t, pool, `INSERT INTO erasures (id, tenant_id, saga_id, state, reason, actor, requested_at, up_to, ended_at)
 VALUES ($1, $1, $1, $2, 'r', 'a', now(), 1, CASE $2 WHEN 'ERASED' THEN now() END)
 ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at`, tenant, state)
	}
	record := func(subject events.Subject, key string, payload any) {
		t.Helper()
		body, err := codec.EncodePayload(subject, payload)
		must.OK(t, err)
		must.OK(t, s.Change(t.Context(), tenant, func(tx commands.Tx) error {
			_, err := tx.Append(events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: subject, TenantID: tenant, DedupeKey: key,
				OccurredAt: time.Now(), Payload: body,
				Residency: "unspecified", Actor: events.Actor{Type: "service", ID: "test"}})
			return err
		}))
	}
	refused("without an erasure", erase())
	tables(domain.TenantArchived, domain.ErasureRunning)
	refused("without events", erase())
	record(events.ErasureStepped, events.KeyErasure(tenant, events.ErasureRequested),
		events.ErasureStep{ErasureID: tenant, Step: events.ErasureRequested, Reason: "r"})
	refused("without the event of the archive", erase())
	record(events.OffboardingStepped, events.KeyOffboarding(tenant, events.OffboardingArchived),
		events.OffboardingStep{OffboardingID: tenant, Step: events.OffboardingArchived, Outcome: events.OffboardingDone})
	tables(domain.TenantSuspended, domain.ErasureRunning)
	refused("a suspended tenant", erase())
	tables(domain.TenantArchived, domain.ErasureErased)
	refused("an ended erasure", erase())
	tables(domain.TenantArchived, domain.ErasureRunning)
	must.Exec(t, pool, `INSERT INTO withheld_records (partition, position, topic, tenant_id, dead_letter_id, reason, late) VALUES ($1, $2,
		1, $3, $3, 'ann', false)`, at.Partition, at.Number, tenant)
	must.OK(t, erase())
	var body, reason string
	must.OK(t, pool.QueryRow(t.Context(), `SELECT reason FROM withheld_records WHERE tenant_id = $1`, tenant).Scan(&reason))
	if reason != "erased" {
		t.Errorf("the record is withheld because of %q", reason)
	}
	must.OK(t, pool.QueryRow(t.Context(), `SELECT body::text FROM event_log_rows WHERE partition = $1 AND position = $2`, at.Partition,
		at.Number).Scan(&body))
	if body != `[1,"f"]` {
		t.Errorf("the body is %s", body)
	}
	for _, sql := range []string{`UPDATE event_log_rows SET body = body`, `DELETE FROM event_log_rows`} {
		_, err := pool.Exec(t.Context(), sql)
		refused(sql, err)
	}
}

// Copies of a client's data have no personal data from the archive of their tenant on: an erasure looks at the events before its request
// only.
func TestP6_CopiesForAnArchivedTenantAreErased(t *testing.T) {
	s, _, pool, _ := openStore(t)
	for status, want := range map[string]string{domain.TenantSuspended: "ann", domain.TenantArchived: events.ErasedName} {
		tenant := uuid.Must(uuid.NewV7())
		must.Exec(t, pool, `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'A', 'small', $2, now())`, tenant, status)
		body, err := codec.EncodePayload(events.AggregationFailed, events.Failed{SourcePosition: 1, SourceEventID: tenant,
			SourceSubject: "meterplex.usage.event.recorded.v1", Topic: "usage.raw",
			Stage: events.StageAggregation, Code: "fold_failed", Reason: "ann", DeadLetterID: tenant,
			Payload: []byte(`{"amount":1,"metadata":{"user":"ann"}}`)})
		must.OK(t, err)
		must.OK(t, s.Change(t.Context(), tenant, func(tx commands.Tx) error {
			_, err := tx.Append(events.Pending{EventID: tenant, Subject: events.AggregationFailed, TenantID: tenant,
				DedupeKey: events.KeyEvent(tenant), OccurredAt: time.Now(), Payload: body,
				Residency: "unspecified", Actor: events.Actor{Type: "service", ID: "test"}})
			return err
		}))
		var reason string
		var ann bool
		must.OK(t, pool.QueryRow(t.Context(), `SELECT body ->> 'reason', body::text ~ 'ann"' FROM event_log_rows WHERE tenant_id = $1`,
			tenant).Scan(&reason, &ann))
		if reason != want || ann != (want == "ann") {
			t.Errorf("%s: the reason is %q; it has the metadata: %v", status, reason, ann)
		}
	}
}
