package prometheus

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/overview"
)

// shown returns the overview that an instance with the state shows.
func shown(t *testing.T, r *reader) overview.Overview {
	t.Helper()
	live := overview.Live{Verdicts: new(overview.Verdicts), State: r.State, Freshness: r.metrics.Freshness, Clock: time.Now}
	f, err := live.Show()
	must.OK(t, err)
	return f.Overview
}

// The overview has the state that the gauges have, and each item that needs an operator, with the time of the oldest and the path that
// lists it.
func TestTheOverviewNamesItemsThatNeedAnOperator(t *testing.T) {
	pool := migrated(t)
	tenant := uuid.New()
	for _, sql := range []string{
		`UPDATE log_heads SET position = 10 WHERE partition = 3`,
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
			topic, subject, dedupe_key, body)
		 SELECT n, 0, now() - interval '1 hour', now(), gen_random_uuid(), $1, 0, 1, 3, 1, 1, n::text, '{}' FROM generate_series(1, 10) n`,
		`INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason, producer_event_id, feature,
			source_position, topic, retry_count, first_failed_at, last_failed_at)
		 SELECT 1, ('0196c0de-0000-7000-8000-00000000000' || n)::uuid, 3, $1, 'PUBLISHING', 'FAILED', 'c', 'r', '', 'f', n, 't', 0,
		 now() - interval '1 hour' / n, now() FROM generate_series(1, 2) n`,
		`INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, deadline_at, created_at) VALUES
		 (gen_random_uuid(), 'period_close', $1, '1', 's', 'PARTIAL', now(), now() - interval '1 hour', now() - interval '1 day'),
		 (gen_random_uuid(), 'billing_push', $1, '2', 's', 'PARTIAL', now(), now() - interval '1 hour', now()),
		 (gen_random_uuid(), 'period_close', $1, '3', 's', 'DRIFT', now(), NULL, now() - interval '1 hour'), (gen_random_uuid(),
		 'period_close', $1, '4', 's', 'RUNNING', now(), NULL, now() - interval '1 hour')`,
		`INSERT INTO webhooks (id, tenant_id, partition, url, events, status, reason, cursor, created_at, failing_since) VALUES
		 (gen_random_uuid(), $1, 0, 'https://example.com', '{}', 'DISABLED', '` + webhook.Failing +
			`', 1, now(), now() - interval '1 hour'), (gen_random_uuid(), gen_random_uuid(), 0, 'https://example.com', '{}', 'DISABLED', '', 1, ` +
			`now(), now())`,
		`INSERT INTO push_comparisons (provider, customer, event, month, total, delivered, compared_at) VALUES ('stripe', $1::text, 'calls',
			to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM'), 5, 4, now())`,
		`INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier,
			counted_at, state, stored_at)
		 VALUES (gen_random_uuid(), $1, 'f', '2026-05', 1, 0, 1, 'stripe', 'c', 'e', 'k', 'i', now(), 'FAILED', now() - interval '1 hour')`,
	} {
		if _, err := pool.Exec(t.Context(), sql, tenantOf(sql, tenant)...); err != nil {
			t.Fatalf("%v: %s", err, sql)
		}
	}
	r := newReader(pool)
	r.read(t)
	r.metrics.Observe(&projections.Consumer{Name: events.GroupAggregator, Topic: events.TopicUsageValidated},
		projections.Batch{Applied: []events.Envelope{{RecordedAt: time.Now().Add(-3 * time.Second)}}, End: time.Now()})
	o := shown(t, r)
	if o.Installation.ReadAt == nil || o.Installation.Outbox.Unpublished != 10 || o.Installation.Outbox.OldestSeconds < 3600 ||
		len(o.Installation.Consumers) < 4 {
		t.Errorf("the installation is %+v", o.Installation)
	}
	if f := o.Instance.Freshness; len(f) != 1 || f[0].Consumer != events.GroupAggregator || f[0].Events != 1 || f[0].P99Seconds < 2 ||
		f[0].P99Seconds > 5 {
		t.Errorf("the freshness is %+v", f)
	}
	want := map[overview.Kind]string{overview.OutboxStalled: "/api/v1/outbox",
		overview.FailedDeadLetters: "/api/v1/dead-letters?status=FAILED&stage=PUBLISHING",
		overview.LateClose:         "/api/v1/sagas?state=PARTIAL&kind=period_close",
		overview.LateSaga:          "/api/v1/sagas?state=PARTIAL&kind=billing_push",
		overview.DriftingSaga:      "/api/v1/sagas?state=DRIFT&kind=period_close",
		overview.DisabledWebhook:   "/api/v1/tenants/" + tenant.String() + "/webhooks", overview.FailedPush: "/api/v1/pushes?state=FAILED",
		overview.PushDifference: ""}
	order := overview.Kinds()
	for i, a := range o.Attention {
		path, expected := want[a.Kind]
		if delete(want, a.Kind); !expected || a.Path == nil && path != "" || a.Path != nil && *a.Path != path {
			t.Errorf("unexpected item %+v", a)
		}
		if a.Kind != overview.PushDifference && (a.Since == nil || time.Since(*a.Since) < 59*time.Minute) {
			t.Errorf("%s since %v", a.Kind, a.Since)
		}
		if n := map[overview.Kind]int64{overview.OutboxStalled: 10, overview.FailedDeadLetters: 2}[a.Kind]; a.Count != max(n, 1) {
			t.Errorf("%s: %d items", a.Kind, a.Count)
		}
		if i > 0 && slices.Index(order, a.Kind) < slices.Index(order, o.Attention[i-1].Kind) {
			t.Errorf("%s after %s", a.Kind, o.Attention[i-1].Kind)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// tenantOf returns the parameter of a statement that has one.
func tenantOf(sql string, tenant uuid.UUID) []any {
	if !slices.Contains([]byte(sql), '$') {
		return nil
	}
	return []any{tenant}
}
