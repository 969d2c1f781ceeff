package store

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/internal/must"
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
	must.OK(w, err)
	p := events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: subject, TenantID: w.tenant, DedupeKey: key,
		Actor: events.Actor{Type: "service", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: body,
		Counts: counts}
	must.OK(w, pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
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
	must.OK(w, err)
}

func (w *letterFixture) retry() {
	w.Helper()
	d := &repair.DeadLetters{Store: w.store, Now: time.Now, NewID: newID}
	ask, err := json.Marshal(events.Retry{DeadLetterID: w.id})
	must.OK(w, err)
	request := events.Envelope{EventID: uuid.Must(uuid.NewV7()), TenantID: w.tenant, Residency: events.ResidencyUnspecified, Payload: ask}
	must.OK(w, w.store.ChangeDeadLetters(w.Context(), w.tenant, func(tx repair.DeadLetterTx) error {
		faults, err := d.ExecuteRetries(tx, []events.Envelope{request})
		return errors.Join(append(faults, err)...)
	}))
	var retried int
	must.OK(w, w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log_rows l WHERE subject = $1
		AND l.payload ->> 'deadLetterId' = $2::text`,
		events.DeadLetterRetried, w.id).Scan(&retried))
	if retried != 1 {
		w.Errorf("retried %d times, want once", retried)
	}
}

func (w *letterFixture) counts(accepted, rejected, parked int) {
	w.Helper()
	var a, r, p int
	must.OK(w, w.pool.QueryRow(w.Context(), `SELECT sum(accepted), sum(rejected), sum(parked) FROM log_heads`).Scan(&a, &r, &p))
	if a != accepted || r != rejected || p != parked {
		w.Errorf("accepted %d, rejected %d, parked %d; want %d, %d, %d", a, r, p, accepted, rejected, parked)
	}
}

// The record of a rejection does not lead to the aggregates: it was not counted as
// parked when it was withheld, and its retry does not reduce that count.
func TestP3_RetryOfAWithheldRejectionIsAcceptedAgain(t *testing.T) {
	w := newLetterFixture(t)
	w.append(events.UsageRejected, events.KeyRejected(1, 0), events.Counts{Rejected: 1}, events.Rejected{RawPosition: 1, EventID: "a",
		DeadLetterID: uuid.New()})
	w.append(events.PublishFailed, "e/failed", events.Counts{}, events.Failed{DeadLetterID: w.id, SourcePosition: 2,
		Stage: events.StagePublishing})
	w.row(events.StagePublishing, 2)
	w.retry()
	w.counts(2, 1, 0)
}

// The counts that a retry changes depend on how the last one ended, which the projection
// may not know yet.
func TestP3_RetryCountsByHowTheLastOneEnded(t *testing.T) {
	t.Run("rejected after it was parked", func(t *testing.T) {
		w := newLetterFixture(t)
		w.append(events.AggregationFailed, "e/failed", events.Counts{Parked: 1}, events.Failed{DeadLetterID: w.id, SourcePosition: 1,
			Stage: events.StageAggregation})
		w.append(events.UsageRetried, events.KeyRetry(w.id, 1), events.Counts{Parked: -1},
			events.Retried{RawPosition: 1, DeadLetterID: uuid.New(), Attempt: 1, Usage: json.RawMessage(`{}`)})
		w.append(events.UsageRejected, events.KeyRejected(1, 1), events.Counts{Rejected: 1}, events.Rejected{RawPosition: 1, EventID: "a",
			DeadLetterID: w.id, Attempt: 1})
		w.row(events.StageAggregation, 1)
		w.retry()
		w.counts(2, 1, 0)
	})
	t.Run("parked after it was rejected", func(t *testing.T) {
		w := newLetterFixture(t)
		w.append(events.UsageRejected, events.KeyRejected(1, 0), events.Counts{Rejected: 1}, events.Rejected{RawPosition: 1, EventID: "a",
			DeadLetterID: w.id})
		w.append(events.UsageRetried, events.KeyRetry(w.id, 1), events.Counts{Accepted: 1},
			events.Retried{RawPosition: 1, DeadLetterID: uuid.New(), Attempt: 1, Usage: json.RawMessage(`{}`)})
		w.append(events.AggregationFailed, events.KeyFailedAgain(w.id, 1), events.Counts{Parked: 1},
			events.Failed{DeadLetterID: w.id, SourcePosition: 3, Stage: events.StageAggregation, Attempt: 1})
		w.row(events.StageValidation, 1)
		w.retry()
		w.counts(2, 1, 0)
	})
}

// The router refuses the retry of a verdict that cannot be decoded: the outcome belongs to the dead letter, and the request becomes no dead
// letter of its own.
func TestARetryOfAnUnreadableVerdictIsRefused(t *testing.T) {
	// accepts payloads that are unlike their schema
	l, pool := logtest.Open(t, localtest.Migrated(t, postgres.Migrate), func(c *eventlog.Config) { c.Written = nil })
	w := &letterFixture{t, l, New(pool, l, Config{}), pool, uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())}
	submit(t, l, w.tenant, usageEvent(w.tenant, "a", 1))
	w.append(events.UsageValidated, events.KeyValidated(1), events.Counts{Validated: 1}, map[string]any{"rawPosition": 1, "eventId": "a",
		"amount": "many"})
	w.append(events.AggregationFailed, "e/failed", events.Counts{Parked: 1}, events.Failed{DeadLetterID: w.id, SourcePosition: 2,
		Stage: events.StageAggregation})
	w.row(events.StageAggregation, 2)
	ask, err := json.Marshal(events.Retry{DeadLetterID: w.id, Attempt: 1})
	must.OK(w, err)
	request := events.Envelope{EventID: uuid.Must(uuid.NewV7()), Subject: events.RetryRequested, TenantID: w.tenant,
		Position:  events.Position{Partition: events.PartitionOf(w.tenant), Number: 4},
		Residency: events.ResidencyUnspecified, Payload: ask}
	router := &Commands{Log: w.log, Letters: &repair.DeadLetters{Store: w.store, Now: time.Now, NewID: newID}}
	must.OK(w, pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		result, err := router.Apply(w.Context(), tx, projections.Generation{}, []events.Envelope{request})
		if len(result.Failed) > 0 {
			w.Errorf("the request failed: %+v", result.Failed)
		}
		return err
	}))
	var code, reason string
	must.OK(w, w.pool.QueryRow(w.Context(), `SELECT l.payload ->> 'code', l.payload ->> 'reason' FROM event_log_rows l WHERE subject = $1
		AND l.payload ->> 'deadLetterId' = $2::text`,
		events.RetryRefused, w.id).Scan(&code, &reason))
	if code != "dead_letter_not_retryable" || !strings.Contains(reason, "decoding a verdict") {
		w.Errorf("refused with %s: %s", code, reason)
	}
}

// A dead letter whose verdict was folded again and failed again knows its recorded event: a discard voids the event's adjustments.
func TestP8_LettersOfFoldsThatFailedAgainKnowTheRecordedEvent(t *testing.T) {
	w := newLetterFixture(t)
	verdict := events.Validated{RawPosition: 1, EventID: "a", Feature: "f", FeatureType: "METERED", PeriodKey: "2026-05", Amount: 1,
		Count: 1, Timestamp: time.Unix(0, 0)}
	w.append(events.UsageValidated, events.KeyValidated(1), events.Counts{Validated: 1}, verdict)
	w.append(events.Reaggregated, events.KeyRetry(w.id, 1), events.Counts{}, events.Reaggregate{DeadLetterID: w.id, Attempt: 1,
		Validated: verdict})
	w.append(events.AggregationFailed, events.KeyFailedAgain(w.id, 1), events.Counts{Parked: 1},
		events.Failed{DeadLetterID: w.id, SourcePosition: 3, Stage: events.StageAggregation, Attempt: 1})
	w.row(events.StageAggregation, 3)
	must.OK(w, w.store.ChangeDeadLetters(w.Context(), w.tenant, func(tx repair.DeadLetterTx) error {
		letters, err := tx.DeadLetters([]uuid.UUID{w.id})
		if l := letters[w.id]; err == nil && (l == nil || l.RawPosition != 1 || l.Corrected) {
			w.Errorf("the letter is %+v", l)
		}
		return err
	}))
	_, err := w.pool.Exec(w.Context(), `INSERT INTO usage_corrections (tenant_id, target, n, cause, position, kind, before, after)
		VALUES ($1, 1, 1, 2, 3, 'correction', 1, 0)`, w.tenant)
	must.OK(w, err)
	must.OK(w, w.store.ChangeDeadLetters(w.Context(), w.tenant, func(tx repair.DeadLetterTx) error {
		letters, err := tx.DeadLetters([]uuid.UUID{w.id})
		if l := letters[w.id]; err == nil && (l == nil || !l.Corrected) {
			w.Errorf("the letter with a correction is %+v", l)
		}
		return err
	}))
}

// offboard ends the fixture's tenant by an offboarding in a state.
func (w *letterFixture) offboard(state string) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'Acme', 'small', 'SUSPENDED',
		now())`, w.tenant)
	must.OK(w, err)
	must.Exec(w, w.pool, `INSERT INTO offboardings (id, tenant_id, saga_id, state, step, reason, actor, requested_at, ended_at)
 VALUES ($1, $2, $1, $3, 'requested', 'r', 'a', now(), CASE WHEN $3::text IN ('CANCELLED', 'ARCHIVED') THEN now() END)`, newID(), w.tenant,
		state)
}

// No period of an archived tenant is closed any more, so a retry would count usage that is never billed: it is refused when it is
// requested, alone or in a bulk, and when a request of before is executed. While the tenant is being offboarded, and after a cancelled
// offboarding, retries are allowed.
func TestP8_DeadLettersOfAnArchivedTenantAreNotRetried(t *testing.T) {
	for state, refused := range map[string]bool{domain.OffboardingRunning: false, domain.OffboardingCancelled: false,
		domain.OffboardingArchived: true} {
		t.Run(state, func(t *testing.T) {
			w := newLetterFixture(t)
			w.append(events.UsageRejected, events.KeyRejected(1, 0), events.Counts{Rejected: 1},
				events.Rejected{RawPosition: 1, EventID: "a", DeadLetterID: w.id})
			w.row(events.StageValidation, 1)
			w.offboard(state)
			d := &repair.DeadLetters{Store: w.store, Now: time.Now, NewID: newID}
			bulk, err := d.Bulk(t.Context(), commands.Request{}, repair.BulkRequest{Action: events.BulkRetry,
				Filter: events.DeadLetterFilter{Stage: events.StageValidation}},
				func(context.Context) ([]domain.DeadLetterRef, error) {
					return []domain.DeadLetterRef{{ID: w.id, TenantID: w.tenant}}, nil
				})
			must.OK(w, err)
			if (bulk.Done == 0) != refused || refused && (len(bulk.Refused) != 1 || bulk.Refused[0].Code != "tenant_offboarding") {
				t.Errorf("the bulk ends with %+v", bulk)
			}
			_, err = d.RequestRetry(t.Context(), commands.Request{}, w.id, w.tenant, "")
			var refusal *domain.Error
			if errors.As(err, &refusal) != refused || refused && refusal.Code != "tenant_offboarding" || !refused && err != nil {
				t.Errorf("the request ends with %v", err)
			}
			ask, err := json.Marshal(events.Retry{DeadLetterID: w.id})
			must.OK(w, err)
			// of before
			request := events.Envelope{EventID: newID(), TenantID: w.tenant, Residency: events.ResidencyUnspecified, Payload: ask}
			must.OK(w, w.store.ChangeDeadLetters(t.Context(), w.tenant, func(tx repair.DeadLetterTx) error {
				faults, err := d.ExecuteRetries(tx, []events.Envelope{request})
				return errors.Join(append(faults, err)...)
			}))
			retried := count(t, w.pool, `SELECT count(*) FROM event_log_rows WHERE subject = $1`, events.UsageRetried)
			no := count(t, w.pool, `SELECT count(*) FROM event_log_rows l WHERE subject = $1
				AND payload(l) ->> 'code' = 'tenant_offboarding'`, events.RetryRefused)
			if want := map[bool][2]int{true: {0, 1}, false: {1, 0}}[refused]; retried != want[0] || no != want[1] {
				t.Errorf("%d retried and %d refused, want %d", retried, no, want)
			}
			must.OK(w, w.store.ChangeDeadLetters(t.Context(), w.tenant, func(tx repair.DeadLetterTx) error {
				letters, err := tx.DeadLetters([]uuid.UUID{w.id})
				if l := letters[w.id]; err == nil && refused && l.Status != events.StatusFailed {
					t.Errorf("the letter is %+v", l)
				}
				return err
			}))
		})
	}
}
