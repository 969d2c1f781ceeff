package projections_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

func decode[T any](w *logFixture, e events.Envelope) (v T) {
	w.Helper()
	w.must(json.Unmarshal(e.Payload, &v))
	return v
}

func TestValidatorAcceptsAndRejects(t *testing.T) {
	w := newLogFixture(t)
	tenant, stranger := tenantIn(4), tenantIn(9)
	s := w.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	at := may.Add(36 * time.Hour)
	good, bad, none := usageEvent(tenant, "a", "calls", 7, at), usageEvent(tenant, "b", "other", 1, at), usageEvent(stranger, "a", "calls", 1, at)
	raw := w.append(good, bad, none)
	r, seen := w.validator()
	w.process(r, append(w.topic(events.TopicUsageRaw, 4, 0), w.topic(events.TopicUsageRaw, 9, 0)...))

	verdicts := w.read(events.TopicUsageValidated, 4, 0)
	if len(verdicts) != 1 {
		t.Fatalf("%d verdicts, want 1", len(verdicts))
	}
	e := verdicts[0]
	want := events.Validated{RawPosition: raw[0].Number, EventID: "a", Feature: "calls", Amount: 7, Count: 1, Timestamp: at,
		ValidatedSubscriptionID: s.ID, FeatureType: domain.FeatureMetered, PeriodKey: "2026-05"}
	if got := decode[events.Validated](w, e); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if e.CausationID != good.EventID || e.CorrelationID != good.CorrelationID || e.DedupeKey != events.KeyValidated(raw[0].Number) ||
		!e.OccurredAt.Equal(at) || e.Actor != (events.Actor{Type: "service", ID: events.GroupValidator}) {
		t.Errorf("envelope %+v", e)
	}
	rejected := append(w.read(events.TopicUsageDeadLetter, 4, 0), w.read(events.TopicUsageDeadLetter, 9, 0)...)
	for i, code := range []string{"feature_not_found", "no_active_subscription"} {
		got := decode[events.Rejected](w, rejected[i])
		if got.Code != code || got.RawPosition != raw[i+1].Number || got.DeadLetterID != rejected[i].EventID || got.Attempt != 0 || got.Reason == "" {
			t.Errorf("rejected %d: %+v", i, got)
		}
	}
	if got := w.counts(4); got != (events.Counts{Accepted: 2, Validated: 1, Rejected: 1}) {
		t.Errorf("counts %+v", got)
	}
	if seen.applied != 3 || seen.followUps != 3 || seen.transactions != 1 {
		t.Errorf("told %+v", seen)
	}
}

// A subscription change after an event's position does not change its verdict.
func TestValidatorUsesTheHistoryUpToThePosition(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(4)
	at := may.Add(time.Hour)
	w.append(usageEvent(tenant, "early", "calls", 1, at))
	w.subscribe(tenant, may, grant("calls", domain.ResetNever))
	w.append(usageEvent(tenant, "late", "calls", 1, at))
	r, _ := w.validator()
	w.process(r, w.topic(events.TopicUsageRaw, 4, 0))
	if got := w.counts(4); got != (events.Counts{Accepted: 2, Validated: 1, Rejected: 1}) {
		t.Fatalf("counts %+v", got)
	}
	early := decode[events.Rejected](w, w.read(events.TopicUsageDeadLetter, 4, 0)[0])
	if early.EventID != "early" {
		t.Fatalf("rejected %+v", early)
	}
}

func retry(w *logFixture, tenant, deadLetter uuid.UUID, raw events.Envelope, attempt int) events.Pending {
	body, err := json.Marshal(events.Retried{RawPosition: raw.Position.Number, DeadLetterID: deadLetter, Attempt: attempt, Usage: raw.Payload})
	w.must(err)
	return events.Pending{EventID: newID(), Subject: events.UsageRetried, TenantID: tenant, DedupeKey: events.KeyRetry(deadLetter, attempt),
		CausationID: raw.EventID, Actor: events.Actor{Type: "service", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: raw.OccurredAt, Payload: body}
}

func TestRetryIsDecidedAgainAndCountsOnce(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(4)
	w.append(usageEvent(tenant, "a", "calls", 5, may))
	r, _ := w.validator()
	w.process(r, w.topic(events.TopicUsageRaw, 4, 0))
	raw := w.read(events.TopicUsageRaw, 4, 0)[0]
	first := w.read(events.TopicUsageDeadLetter, 4, 0)[0]

	w.append(retry(w, tenant, first.EventID, raw, 1))
	w.process(r, w.topic(events.TopicUsageRaw, 4, 0))
	again := decode[events.Rejected](w, w.read(events.TopicUsageDeadLetter, 4, 0)[1])
	if again.Attempt != 1 || again.DeadLetterID != first.EventID || again.RawPosition != raw.Position.Number {
		t.Fatalf("second rejection %+v", again)
	}

	w.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	w.append(retry(w, tenant, first.EventID, raw, 2), retry(w, tenant, first.EventID, raw, 3))
	w.process(r, w.topic(events.TopicUsageRaw, 4, 0))
	verdicts := w.read(events.TopicUsageValidated, 4, 0)
	if len(verdicts) != 1 || decode[events.Validated](w, verdicts[0]).RawPosition != raw.Position.Number {
		t.Fatalf("%d verdicts, want one on the recorded position", len(verdicts))
	}
	if got := w.counts(4); got != (events.Counts{Accepted: 1, Validated: 1, Rejected: 2}) {
		t.Fatalf("counts %+v", got)
	}
	letters := w.read(events.TopicUsageDeadLetter, 4, 0)
	for _, e := range letters[2:] {
		if got := decode[events.Closed](w, e); e.Subject != events.DeadLetterClosed || got.Status != events.StatusResolved || got.DeadLetterID != first.EventID {
			t.Errorf("%d: %+v", e.Subject, got)
		}
	}
	if len(letters) != 3 {
		t.Errorf("%d dead letter events, want 2 rejections and one end", len(letters))
	}
}

// An event that the validator cannot read is parked, retryable, and its neighbours are judged.
func TestValidatorParksUnreadableEvents(t *testing.T) {
	w := newLogFixture(t)
	w.payloads.Allow() // poison
	tenant := tenantIn(4)
	w.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	poison := usageEvent(tenant, "p", "calls", 1, may)
	poison.Payload = json.RawMessage(`{"amount":"many"}`)
	w.append(usageEvent(tenant, "a", "calls", 1, may), poison, usageEvent(tenant, "b", "calls", 1, may))
	r, _ := w.validator()
	w.process(r, w.topic(events.TopicUsageRaw, 4, 0))
	if got := w.counts(4); got != (events.Counts{Accepted: 3, Validated: 2, Parked: 1}) {
		t.Fatalf("counts %+v", got)
	}
	letter := w.read(events.TopicUsageDeadLetter, 4, 0)[0]
	got := decode[events.Failed](w, letter)
	if letter.Subject != events.AggregationFailed || got.Stage != events.StageAggregation || got.SourceEventID != poison.EventID ||
		got.DeadLetterID != letter.EventID || got.KafkaOffset != 1 || string(got.Payload) != string(poison.Payload) {
		t.Fatalf("letter %+v", got)
	}
}
