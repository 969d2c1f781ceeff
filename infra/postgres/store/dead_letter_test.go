package store

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections"
)

// letterFixture is a tenant with one recorded event, whose dead letter a test makes.
type letterFixture struct {
	testing.TB
	log    *eventlog.Log
	store  *Store
	pool   *pgxpool.Pool
	tenant uuid.UUID
	id     uuid.UUID
}

func newLetterFixture(t testing.TB) *letterFixture {
	s, l, pool, _ := openStore(t)
	w := &letterFixture{t, l, s, pool, uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())}
	submit(t, l, w.tenant, usageEvent(w.tenant, "a", 1))
	return w
}

func (w *letterFixture) append(subject events.Subject, key string, counts events.Counts, payload any) {
	w.Helper()
	body, err := json.Marshal(payload)
	w.must(err)
	p := events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: subject, TenantID: w.tenant, DedupeKey: key,
		Actor: events.Actor{Type: "service", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: body, Counts: counts}
	w.must(pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		_, err := w.log.AppendTx(w.Context(), tx, []events.Pending{p})
		return err
	}))
}

// row writes the letter's row of the projection, which may lag behind.
func (w *letterFixture) row(stage string, source int) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), `INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason,
 producer_event_id, feature, source_position, topic, retry_count, first_failed_at, last_failed_at)
 VALUES (1, $1, $2, $3, $4, 'FAILED', 'c', 'r', 'a', 'f', $5, 't', 0, now(), now())`,
		w.id, events.PartitionOf(w.tenant), w.tenant, stage, source)
	w.must(err)
}

func (w *letterFixture) retry() {
	w.Helper()
	d := &commands.DeadLetters{Store: w.store, Now: time.Now, NewID: func() uuid.UUID { return uuid.Must(uuid.NewV7()) }}
	ask, err := json.Marshal(events.Retry{DeadLetterID: w.id})
	w.must(err)
	request := events.Envelope{EventID: uuid.Must(uuid.NewV7()), TenantID: w.tenant, Residency: events.ResidencyUnspecified, Payload: ask}
	w.must(w.store.ChangeDeadLetters(w.Context(), w.tenant, func(tx commands.DeadLetterTx) error {
		faults, err := d.ExecuteRetries(tx, []events.Envelope{request})
		return errors.Join(append(faults, err)...)
	}))
	var retried int
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log_rows l WHERE subject = $1 AND l.payload ->> 'deadLetterId' = $2::text`,
		events.DeadLetterRetried, w.id).Scan(&retried))
	if retried != 1 {
		w.Errorf("retried %d times, want once", retried)
	}
}

func (w *letterFixture) counts(accepted, rejected, parked int) {
	w.Helper()
	var a, r, p int
	w.must(w.pool.QueryRow(w.Context(), `SELECT sum(accepted), sum(rejected), sum(parked) FROM log_heads`).Scan(&a, &r, &p))
	if a != accepted || r != rejected || p != parked {
		w.Errorf("accepted %d, rejected %d, parked %d; want %d, %d, %d", a, r, p, accepted, rejected, parked)
	}
}

func (w *letterFixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// The record of a rejection does not lead to the aggregates: it was not counted as
// parked when it was withheld, and its retry does not reduce that count.
func TestP3_RetryOfAWithheldRejectionIsAcceptedAgain(t *testing.T) {
	w := newLetterFixture(t)
	w.append(events.UsageRejected, events.KeyRejected(1, 0), events.Counts{Rejected: 1}, events.Rejected{RawPosition: 1, EventID: "a", DeadLetterID: uuid.New()})
	w.append(events.PublishFailed, "e/failed", events.Counts{}, events.Failed{DeadLetterID: w.id, SourcePosition: 2, Stage: events.StagePublishing})
	w.row(events.StagePublishing, 2)
	w.retry()
	w.counts(2, 1, 0)
}

// The counts that a retry changes depend on how the last one ended, which the projection
// may not know yet.
func TestP3_RetryCountsByHowTheLastOneEnded(t *testing.T) {
	t.Run("rejected after it was parked", func(t *testing.T) {
		w := newLetterFixture(t)
		w.append(events.AggregationFailed, "e/failed", events.Counts{Parked: 1}, events.Failed{DeadLetterID: w.id, SourcePosition: 1, Stage: events.StageAggregation})
		w.append(events.UsageRetried, events.KeyRetry(w.id, 1), events.Counts{Parked: -1}, events.Retried{RawPosition: 1, DeadLetterID: uuid.New(), Attempt: 1, Usage: json.RawMessage(`{}`)})
		w.append(events.UsageRejected, events.KeyRejected(1, 1), events.Counts{Rejected: 1}, events.Rejected{RawPosition: 1, EventID: "a", DeadLetterID: w.id, Attempt: 1})
		w.row(events.StageAggregation, 1)
		w.retry()
		w.counts(2, 1, 0)
	})
	t.Run("parked after it was rejected", func(t *testing.T) {
		w := newLetterFixture(t)
		w.append(events.UsageRejected, events.KeyRejected(1, 0), events.Counts{Rejected: 1}, events.Rejected{RawPosition: 1, EventID: "a", DeadLetterID: w.id})
		w.append(events.UsageRetried, events.KeyRetry(w.id, 1), events.Counts{Accepted: 1}, events.Retried{RawPosition: 1, DeadLetterID: uuid.New(), Attempt: 1, Usage: json.RawMessage(`{}`)})
		w.append(events.AggregationFailed, events.KeyFailedAgain(w.id, 1), events.Counts{Parked: 1}, events.Failed{DeadLetterID: w.id, SourcePosition: 3, Stage: events.StageAggregation, Attempt: 1})
		w.row(events.StageValidation, 1)
		w.retry()
		w.counts(2, 1, 0)
	})
}

// The router refuses the retry of a verdict that cannot be decoded: the outcome belongs to the dead letter, and the request becomes no dead letter of its own.
func TestARetryOfAnUnreadableVerdictIsRefused(t *testing.T) {
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate), func(c *eventlog.Config) { c.Written = nil }) // accepts payloads that are unlike their schema
	w := &letterFixture{t, l, New(pool, l, Config{}), pool, uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())}
	submit(t, l, w.tenant, usageEvent(w.tenant, "a", 1))
	w.append(events.UsageValidated, events.KeyValidated(1), events.Counts{Validated: 1}, map[string]any{"rawPosition": 1, "eventId": "a", "amount": "many"})
	w.append(events.AggregationFailed, "e/failed", events.Counts{Parked: 1}, events.Failed{DeadLetterID: w.id, SourcePosition: 2, Stage: events.StageAggregation})
	w.row(events.StageAggregation, 2)
	ask, err := json.Marshal(events.Retry{DeadLetterID: w.id, Attempt: 1})
	w.must(err)
	request := events.Envelope{EventID: uuid.Must(uuid.NewV7()), Subject: events.RetryRequested, TenantID: w.tenant, Position: events.Position{Partition: events.PartitionOf(w.tenant), Number: 4},
		Residency: events.ResidencyUnspecified, Payload: ask}
	router := &Commands{Log: w.log, Letters: &commands.DeadLetters{Store: w.store, Now: time.Now, NewID: func() uuid.UUID { return uuid.Must(uuid.NewV7()) }}}
	w.must(pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		result, err := router.Apply(w.Context(), tx, projections.Generation{}, []events.Envelope{request})
		if len(result.Failed) > 0 {
			w.Errorf("the request failed: %+v", result.Failed)
		}
		return err
	}))
	var code, reason string
	w.must(w.pool.QueryRow(w.Context(), `SELECT l.payload ->> 'code', l.payload ->> 'reason' FROM event_log_rows l WHERE subject = $1 AND l.payload ->> 'deadLetterId' = $2::text`,
		events.RetryRefused, w.id).Scan(&code, &reason))
	if code != "dead_letter_not_retryable" || !strings.Contains(reason, "decoding a verdict") {
		w.Errorf("refused with %s: %s", code, reason)
	}
}

// A dead letter whose verdict was folded again and failed again knows its recorded event: a discard voids the event's adjustments.
func TestP8_LettersOfFoldsThatFailedAgainKnowTheRecordedEvent(t *testing.T) {
	w := newLetterFixture(t)
	verdict := events.Validated{RawPosition: 1, EventID: "a", Feature: "f", FeatureType: "METERED", PeriodKey: "2026-05", Amount: 1, Count: 1, Timestamp: time.Unix(0, 0)}
	w.append(events.UsageValidated, events.KeyValidated(1), events.Counts{Validated: 1}, verdict)
	w.append(events.Reaggregated, events.KeyRetry(w.id, 1), events.Counts{}, events.Reaggregate{DeadLetterID: w.id, Attempt: 1, Validated: verdict})
	w.append(events.AggregationFailed, events.KeyFailedAgain(w.id, 1), events.Counts{Parked: 1}, events.Failed{DeadLetterID: w.id, SourcePosition: 3, Stage: events.StageAggregation, Attempt: 1})
	w.row(events.StageAggregation, 3)
	w.must(w.store.ChangeDeadLetters(w.Context(), w.tenant, func(tx commands.DeadLetterTx) error {
		letters, err := tx.DeadLetters([]uuid.UUID{w.id})
		if l := letters[w.id]; err == nil && (l == nil || l.RawPosition != 1 || l.Corrected) {
			w.Errorf("the letter is %+v", l)
		}
		return err
	}))
	_, err := w.pool.Exec(w.Context(), `INSERT INTO usage_corrections (tenant_id, target, n, cause, position, kind, before, after) VALUES ($1, 1, 1, 2, 3, 'correction', 1, 0)`, w.tenant)
	w.must(err)
	w.must(w.store.ChangeDeadLetters(w.Context(), w.tenant, func(tx commands.DeadLetterTx) error {
		letters, err := tx.DeadLetters([]uuid.UUID{w.id})
		if l := letters[w.id]; err == nil && (l == nil || !l.Corrected) {
			w.Errorf("the letter with a correction is %+v", l)
		}
		return err
	}))
}
