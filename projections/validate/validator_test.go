package validate_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
)

func TestValidatorAcceptsAndRejects(t *testing.T) {
	w := NewDatabase(t)
	tenant, stranger := TenantIn(4), TenantIn(9)
	s := w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	at := May.Add(36 * time.Hour)
	good, bad, none := Usage(tenant, "a", "calls", 7, at), Usage(tenant, "b", "other", 1, at), Usage(stranger, "a", "calls", 1, at)
	raw := w.Append(good, bad, none)
	r, seen := w.Validator()
	w.Process(r, append(w.Topic(events.TopicUsageRaw, 4, 0), w.Topic(events.TopicUsageRaw, 9, 0)...))

	verdicts := w.Read(events.TopicUsageValidated, 4, 0)
	if len(verdicts) != 1 {
		t.Fatalf("%d verdicts, want 1", len(verdicts))
	}
	e := verdicts[0]
	want := events.Validated{RawPosition: raw[0].Number, EventID: "a", Feature: "calls", Amount: 7, Count: 1, Timestamp: at,
		ValidatedSubscriptionID: s.ID, FeatureType: domain.FeatureMetered, PeriodKey: "2026-05"}
	if got := Decode[events.Validated](w, e); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if e.CausationID != good.EventID || e.CorrelationID != good.CorrelationID || e.DedupeKey != events.KeyValidated(raw[0].Number) ||
		!e.OccurredAt.Equal(at) || e.Actor != (events.Actor{Type: "service", ID: events.GroupValidator}) {
		t.Errorf("envelope %+v", e)
	}
	rejected := append(w.Read(events.TopicUsageDeadLetter, 4, 0), w.Read(events.TopicUsageDeadLetter, 9, 0)...)
	for i, code := range []string{"feature_not_found", "no_active_subscription"} {
		got := Decode[events.Rejected](w, rejected[i])
		if got.Code != code || got.RawPosition != raw[i+1].Number || got.DeadLetterID != rejected[i].EventID || got.Attempt != 0 ||
			got.Reason == "" {
			t.Errorf("rejected %d: %+v", i, got)
		}
	}
	if got := w.Counts(4); got != (events.Counts{Accepted: 2, Validated: 1, Rejected: 1}) {
		t.Errorf("counts %+v", got)
	}
	if seen.Applied != 3 || seen.FollowUps != 3 || seen.Transactions != 1 {
		t.Errorf("told %+v", seen)
	}
}

// A subscription change after an event's position does not change its verdict.
func TestValidatorUsesTheHistoryUpToThePosition(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(4)
	at := May.Add(time.Hour)
	w.Append(Usage(tenant, "early", "calls", 1, at))
	w.Subscribe(tenant, May, Grant("calls", domain.ResetNever))
	w.Append(Usage(tenant, "late", "calls", 1, at))
	r, _ := w.Validator()
	w.Process(r, w.Topic(events.TopicUsageRaw, 4, 0))
	if got := w.Counts(4); got != (events.Counts{Accepted: 2, Validated: 1, Rejected: 1}) {
		t.Fatalf("counts %+v", got)
	}
	early := Decode[events.Rejected](w, w.Read(events.TopicUsageDeadLetter, 4, 0)[0])
	if early.EventID != "early" {
		t.Fatalf("rejected %+v", early)
	}
}

func retry(w *Database, tenant, deadLetter uuid.UUID, raw events.Envelope, attempt int) events.Pending {
	body, err := json.Marshal(events.Retried{RawPosition: raw.Position.Number, DeadLetterID: deadLetter, Attempt: attempt,
		Usage: raw.Payload})
	w.Must(err)
	return events.Pending{EventID: NewID(), Subject: events.UsageRetried, TenantID: tenant, DedupeKey: events.KeyRetry(deadLetter, attempt),
		CausationID: raw.EventID, Actor: events.Actor{Type: "service", ID: "test"}, Residency: events.ResidencyUnspecified,
		OccurredAt: raw.OccurredAt, Payload: body}
}

func TestRetryIsDecidedAgainAndCountsOnce(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(4)
	w.Append(Usage(tenant, "a", "calls", 5, May))
	r, _ := w.Validator()
	w.Process(r, w.Topic(events.TopicUsageRaw, 4, 0))
	raw := w.Read(events.TopicUsageRaw, 4, 0)[0]
	first := w.Read(events.TopicUsageDeadLetter, 4, 0)[0]

	w.Append(retry(w, tenant, first.EventID, raw, 1))
	w.Process(r, w.Topic(events.TopicUsageRaw, 4, 0))
	again := Decode[events.Rejected](w, w.Read(events.TopicUsageDeadLetter, 4, 0)[1])
	if again.Attempt != 1 || again.DeadLetterID != first.EventID || again.RawPosition != raw.Position.Number {
		t.Fatalf("second rejection %+v", again)
	}

	w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	w.Append(retry(w, tenant, first.EventID, raw, 2), retry(w, tenant, first.EventID, raw, 3))
	w.Process(r, w.Topic(events.TopicUsageRaw, 4, 0))
	verdicts := w.Read(events.TopicUsageValidated, 4, 0)
	if len(verdicts) != 1 || Decode[events.Validated](w, verdicts[0]).RawPosition != raw.Position.Number {
		t.Fatalf("%d verdicts, want one on the recorded position", len(verdicts))
	}
	if got := w.Counts(4); got != (events.Counts{Accepted: 1, Validated: 1, Rejected: 2}) {
		t.Fatalf("counts %+v", got)
	}
	letters := w.Read(events.TopicUsageDeadLetter, 4, 0)
	for _, e := range letters[2:] {
		if got := Decode[events.Closed](w, e); e.Subject != events.DeadLetterClosed || got.Status != events.StatusResolved ||
			got.DeadLetterID != first.EventID {
			t.Errorf("%d: %+v", e.Subject, got)
		}
	}
	if len(letters) != 3 {
		t.Errorf("%d dead letter events, want 2 rejections and one end", len(letters))
	}
}

// An event that the validator cannot read is parked, retryable, and its neighbours are decided.
func TestValidatorParksUnreadableEvents(t *testing.T) {
	w := NewDatabase(t)
	w.Payloads.Allow() // poison
	tenant := TenantIn(4)
	w.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	poison := Usage(tenant, "p", "calls", 1, May)
	poison.Payload = json.RawMessage(`{"amount":"many"}`)
	w.Append(Usage(tenant, "a", "calls", 1, May), poison, Usage(tenant, "b", "calls", 1, May))
	r, _ := w.Validator()
	w.Process(r, w.Topic(events.TopicUsageRaw, 4, 0))
	if got := w.Counts(4); got != (events.Counts{Accepted: 3, Validated: 2, Parked: 1}) {
		t.Fatalf("counts %+v", got)
	}
	letter := w.Read(events.TopicUsageDeadLetter, 4, 0)[0]
	got := Decode[events.Failed](w, letter)
	if letter.Subject != events.AggregationFailed || got.Stage != events.StageAggregation || got.SourceEventID != poison.EventID ||
		got.DeadLetterID != letter.EventID || string(got.Payload) != string(poison.Payload) {
		t.Fatalf("letter %+v", got)
	}
}
