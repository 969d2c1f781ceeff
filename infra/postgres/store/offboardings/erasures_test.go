package offboardings_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/offboardings"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/models"
)

// erasure is a running erasure of a tenant with personal data in more rows than a batch erases.
type erasure struct {
	*Sized
	id    uuid.UUID
	store offboardings.Erasures
}

func newErasure(t *testing.T) *erasure {
	s := NewSized(t)
	counted := store.New(s.Counted, s.EventLog, store.Config{})
	e := &erasure{Sized: s, id: NewID(), store: offboardings.Erasures{Store: counted, Models: models.PersonalData(), Rows: 500}}
	// The planner knows neither the tenant nor its partition.
	s.Write(Written{Others: 5, Events: 1000, Run: 1000, Rejects: 1 << 30, Features: []string{"calls"}, Vacuum: true})
	s.Write(Written{Events: 5200, Run: 1300, Rejects: 1 << 30, Features: []string{"calls"}})
	archived := Plain(s.Tenant, events.OffboardingStepped, events.Counts{},
		events.OffboardingStep{OffboardingID: s.Tenant, Step: events.OffboardingArchived, Outcome: events.OffboardingDone})
	archived.DedupeKey = events.KeyOffboarding(s.Tenant, events.OffboardingArchived)
	requested := Plain(s.Tenant, events.ErasureStepped, events.Counts{},
		events.ErasureStep{ErasureID: e.id, Step: events.ErasureRequested, Reason: "r"})
	requested.DedupeKey = events.KeyErasure(e.id, events.ErasureRequested)
	s.Append(archived, requested)
	s.Drain(s.Aggregating, s.Lettering, s.Summing)
	e.exec(`INSERT INTO erasures (id, tenant_id, saga_id, state, reason, actor, requested_at, up_to)
 SELECT $2, $1, $1, 'RUNNING', 'r', 'a', now(), max(position) FROM event_log_rows WHERE tenant_id = $1`, s.Tenant, e.id)
	for _, sql := range []string{
		`UPDATE tenants SET status = 'ARCHIVED' WHERE id = $1`,
		`INSERT INTO idempotency_answers (tenant_id, key, request_hash, status, body, created_at)
 SELECT '00000000-0000-0000-0000-000000000000'::uuid, n::text, '\x01'::bytea, 200, to_json('ann of ' || $1::uuid), now() - interval '1 day'
 FROM generate_series(1, 10100) n
 UNION ALL SELECT '00000000-0000-0000-0000-000000000000'::uuid, 'of others ' || n, '\x01'::bytea, 200, '{}'::json, now() - interval '1 day'
 FROM generate_series(1, 5000) n`,
		`INSERT INTO usage_series SELECT 1, 0, t, 'calls', timestamptz '2026-01-01Z' + n * interval '1 hour', '{"user":"ann"}', 1, 1
 FROM unnest(ARRAY[$1, gen_random_uuid()]) t, generate_series(1, 5000) n`,
		`INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason, producer_event_id, feature,
  source_position, topic, retry_count, first_failed_at, last_failed_at)
 SELECT 1, gen_random_uuid(), 0, t, 'INGESTION', 'FAILED', 'c', 'ann', 'e', 'calls', n, 'usage.raw', 0, now(), now()
 FROM unnest(ARRAY[$1, gen_random_uuid()]) t, generate_series(1, 5000) n`,
	} {
		e.exec(sql, s.Tenant)
	}
	owner, err := pgx.Connect(t.Context(), s.URL)
	s.Must(err)
	s.Must(Second(owner.Exec(t.Context(), `UPDATE event_log_rows SET body = '[1,"calls",{"user":"ann"}]'
 WHERE tenant_id = $1 AND subject = 1`, s.Tenant)))
	s.Must(owner.Close(t.Context()))
	s.EndSessions()
	return e
}

// A batch of an erasure changes a bounded number of rows and reads no others, however many rows the tenant and others have, and whatever
// the planner knows of them.
func TestP6_BatchesOfAnErasureAreBounded(t *testing.T) {
	e := newErasure(t)
	for more, batches := true, 0; more; {
		e.AtMost(3500, "a batch of 500 events", func() {
			if !more {
				return // the last batch is measured again
			}
			var err error
			more, err = e.store.EraseLog(t.Context(), e.id)
			e.Must(err)
			batches++
		})
		if !more && batches < 20 {
			t.Errorf("10,402 events are erased by %d batches", batches)
		}
	}
	e.exec(`UPDATE relay_cursors SET position = 20000 WHERE partition = $1`, e.Partition)
	for more, batches := true, 0; more; {
		e.AtMost(10_000, "a batch of rows", func() {
			if !more {
				return
			}
			var waits []string
			var err error
			waits, more, err = e.store.EraseModels(t.Context(), e.id)
			if batches++; err != nil || len(waits) > 0 {
				t.Fatalf("%v, waits for %q", err, waits)
			}
		})
		if !more && batches < 10+5+11 {
			t.Errorf("5,000 dead letters, 5,000 groups and 10,100 answers are erased by %d batches", batches)
		}
	}
	e.exec(`UPDATE erasures SET up_to = 200000, cursor = 20000 WHERE id = $1`, e.id) // the rest of the log is others'
	_, err := e.store.EraseLog(t.Context(), e.id)
	e.Must(err)
	if n := e.count(`SELECT cursor FROM erasures WHERE id = $1`, e.id); n > 70_000 {
		t.Errorf("a batch looks at %d positions", n-20_000)
	}
	if left := e.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND body::text ~ 'ann'`, e.Tenant) +
		e.count(`SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND reason ~ 'ann'`, e.Tenant) +
		e.count(`SELECT count(*) FROM usage_series WHERE tenant_id = $1 AND group_values ~ 'ann'`, e.Tenant) +
		e.count(`SELECT count(*) FROM idempotency_answers WHERE key NOT LIKE 'of others %' AND (body IS NOT NULL
			OR length(request_hash) > 0)`); left > 0 {
		t.Errorf("%d rows still have personal data", left)
	}
	if kept := e.count(`SELECT count(*) FROM idempotency_answers WHERE key LIKE 'of others %' AND body IS NOT NULL
		AND length(request_hash) > 0`); kept != 5000 {
		t.Errorf("%d of 5,000 answers of others are kept", kept)
	}
}

// The functions that erase bound their own batches, whatever the service asks for.
func TestP6_TheServerBoundsTheBatchesOfAnErasure(t *testing.T) {
	e := newErasure(t)
	for most, want := range map[string]int{"2147483647": 10_000, "0": 1, "-1": 1, "NULL": 1000} {
		tx, err := e.Pool.Begin(t.Context())
		e.Must(err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		var reached, erased, dropped int
		var key string
		e.Must(tx.QueryRow(t.Context(), `SELECT reached, erased FROM erase_events($1, $2, 0, 200000, `+most+`)`, e.Tenant, e.Partition).
			Scan(&reached, &erased))
		e.Must(tx.QueryRow(t.Context(), `SELECT erase_answers($1, $2, '', `+most+`)`, e.Tenant, e.Partition).Scan(&key))
		e.Must(tx.QueryRow(t.Context(), `SELECT count(*) FROM idempotency_answers WHERE body IS NULL`).Scan(&dropped))
		if reached != want || erased < want/3 || dropped != want || key == "" {
			t.Errorf("a call for %s rows changes %d events up to %d, and %d answers up to %q", most, erased, reached, dropped, key)
		}
		e.Must(tx.Rollback(t.Context()))
	}
}

// An erasure ends only once its events are not published any more as they were before: neither by the relay nor by a replay of a range
// that begins among them.
func TestP6_AnErasureWaitsForReplays(t *testing.T) {
	e := newErasure(t)
	for more := true; more; {
		var err error
		more, err = e.store.EraseLog(t.Context(), e.id)
		e.Must(err)
	}
	replay := func(tenant *uuid.UUID, partition int16, first, upTo int64) uuid.UUID {
		id := NewID()
		e.exec(`INSERT INTO replays (id, kind, tenant_id, reason, state, created_at) VALUES ($1, 'range', $2, 'r', 'RUNNING', now())`, id,
			tenant)
		e.exec(`INSERT INTO replay_units (replay_id, partition, first, cursor, upto) VALUES ($1, $2, $3::bigint, $3::bigint - 1, $4)`, id,
			partition, first, upTo)
		return id
	}
	// finish runs the steps until the erasure waits, or has ended.
	finish := func() (waits []string) {
		for more := true; more && len(waits) == 0; {
			var err error
			waits, more, err = e.store.EraseModels(t.Context(), e.id)
			e.Must(err)
		}
		return waits
	}
	wants := func(of string, want ...string) {
		t.Helper()
		if waits := finish(); !slices.Equal(waits, want) {
			t.Errorf("%s: the erasure waits for %q, want %q", of, waits, want)
		}
	}
	other := NewID()
	replay(&other, e.Partition, 1, 500)      // of another tenant
	replay(nil, (e.Partition+1)%32, 1, 500)  // in another partition
	replay(nil, e.Partition, 20_001, 30_000) // behind the erased events
	first, second := replay(nil, e.Partition, 1, 500), replay(&e.Tenant, e.Partition, 100, 30_000)
	wants("before the relay", "relay", "replays")
	e.exec(`UPDATE relay_cursors SET position = 20000 WHERE partition = $1`, e.Partition)
	passed := func(replay uuid.UUID, cursor int) {
		e.exec(`UPDATE replay_units SET cursor = $2 WHERE replay_id = $1`, replay, cursor)
	}
	wants("with two replays", "replays")
	passed(second, 20_000)
	wants("with a replay of all tenants", "replays")
	third := replay(&e.Tenant, e.Partition, 100, 600)
	passed(first, 500)
	wants("with a replay of the tenant", "replays")
	passed(third, 600)
	e.exec(`UPDATE replays SET state = 'FAILED', ended_at = now() WHERE id = $1`, replay(nil, e.Partition, 1, 500))
	e.exec(`UPDATE replays SET kind = 'consumer' WHERE id = $1`, replay(nil, e.Partition, 1, 500)) // publishes no event
	wants("with replays that have passed the erased events, one that failed, and a rewind of a consumer")
}

func (e *erasure) exec(sql string, args ...any) {
	e.Helper()
	e.Must(Second(e.Pool.Exec(e.Context(), sql, args...)))
}

func (e *erasure) count(sql string, args ...any) (n int) {
	e.Helper()
	e.Must(e.Pool.QueryRow(e.Context(), sql, args...).Scan(&n))
	return n
}
