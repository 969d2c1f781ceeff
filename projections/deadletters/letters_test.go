package deadletters_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
)

func TestDeadLetterOfARejection(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	event := Usage(tenant, "e", "calls", 1, May)
	at := s.Append(Usage(tenant, "before", "calls", 1, May), event)[1]
	s.Settle()
	s.Relayed(100)
	id := s.Receipt(tenant, "e").Rejected.DeadLetterID
	d := s.Letter(id)
	if d.Stage != events.StageValidation || d.Status != events.StatusFailed || d.Code != "no_active_subscription" || d.EventID != "e" ||
		d.Feature != "calls" ||
		d.SourcePosition != at || d.Topic != "usage.raw" || d.KafkaOffset == nil || *d.KafkaOffset != 101 || d.RetryCount != 0 {
		t.Errorf("%+v", d)
	}
	if string(d.Payload) != string(event.Payload) {
		t.Errorf("the payload is the recorded one: %s", d.Payload)
	}
	s.Retry(tenant, id, at.Number, 1)
	s.Drain(s.Lettering)
	if d := s.Letter(id); d.Status != events.StatusRetrying || d.RetryCount != 1 {
		t.Errorf("retrying: %+v", d)
	}
	s.Append(Plain(tenant, events.RetryRefused, events.Counts{}, events.Refused{DeadLetterID: id, Code: "dead_letter_not_retryable",
		Reason: "under way"}))
	s.Drain(s.Lettering)
	if d := s.Letter(id); d.Status != events.StatusRetrying || !json.Valid(d.Details) {
		t.Errorf("a second request that is refused ends no retry: %+v", d)
	}
	s.Settle()
	if again := s.Letter(id); again.Status != events.StatusFailed || again.RetryCount != 1 || again.FirstFailedAt != d.FirstFailedAt ||
		!again.LastFailedAt.After(d.LastFailedAt) {
		t.Errorf("failed again: %+v", again)
	}
	s.Append(Plain(tenant, events.DeadLetterClosed, events.Counts{}, events.Closed{DeadLetterID: id, Status: events.StatusDiscarded,
		Reason: "a test"}))
	s.Drain(s.Lettering)
	if d := s.Letter(id); d.Status != events.StatusDiscarded || string(d.Details) != `{"closedReason":"a test"}` {
		t.Errorf("discarded: %+v", d)
	}
	if got := s.Receipt(tenant, "e"); got.Status != projections.UsageRejected {
		t.Errorf("discarded: %s", got.Status)
	}
}

func TestDeadLettersOfEachStage(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	at := s.Append(Usage(tenant, "e", "calls", 1, May))[0]
	withheld := events.Failed{SourcePosition: at.Number, SourceEventID: NewID(), Topic: "usage.raw", Stage: events.StagePublishing,
		Code:    "publish_refused",
		Payload: json.RawMessage(`{"eventId":"e","feature":"calls"}`)}
	again := events.Failed{SourcePosition: 9, Topic: "usage.validated", Stage: events.StageAggregation, Code: "fold_failed", Attempt: 2,
		Payload: json.RawMessage(`{"validated":{"eventId":"v","feature":"f"}}`)}
	catalogue := events.Failed{SourcePosition: 3, Topic: "meterplex.catalogue", Stage: events.StagePublishing, Code: "publish_refused"}
	said := []events.Pending{Conflict(tenant, "e", at, "x"), Plain(tenant, events.PublishFailed, events.Counts{Parked: 1}, withheld),
		Plain(tenant, events.AggregationFailed, events.Counts{}, again), Plain(tenant, events.PublishFailed, events.Counts{}, catalogue)}
	s.Append(said...)
	s.Drain(s.Lettering)
	for i, want := range []string{
		"INGESTION payload_conflict e calls usage.raw none 0", "PUBLISHING publish_refused e calls usage.raw none 0",
		"AGGREGATION fold_failed v f usage.validated none 2", "PUBLISHING publish_refused   meterplex.catalogue none 0",
	} {
		d := s.Letter(said[i].EventID)
		offset := "none"
		if d.KafkaOffset != nil {
			offset = fmt.Sprint(*d.KafkaOffset)
		}
		if got := fmt.Sprintln(d.Stage, d.Code, d.EventID, d.Feature, d.Topic, offset, d.RetryCount); got != want+"\n" {
			t.Errorf("got  %swant %s", got, want)
		}
	}
	if d := s.Letter(said[0].EventID); d.KafkaPartition != nil || len(d.Payload) == 0 || len(d.Details) < 128 {
		t.Errorf("a conflict was never on a topic, and has both hashes: %+v", d)
	}
	if got := s.Receipt(tenant, "e"); got.Status != projections.UsageDeadLettered {
		t.Errorf("withheld: %s", got.Status)
	}
}

func TestDeadLettersAreListed(t *testing.T) {
	s := NewPipeline(t)
	tenants := []uuid.UUID{NewID(), NewID(), NewID()}
	for i := range 12 {
		s.Append(Usage(tenants[i%3], fmt.Sprint("e", i), "calls", 1, May))
		s.Settle()
	}
	// One tenant sees a generation of its own.
	_, err := s.Pool.Exec(t.Context(), `INSERT INTO projection_pointers (projection, tenant_id, generation, flip)
		VALUES ('dead_letter_events', $1, 2, 2)`, tenants[0])
	s.Must(err)
	s.Must(Second(s.Pool.Exec(t.Context(), `INSERT INTO consumer_checkpoints (consumer, generation, partition, position, joined)
		SELECT consumer, 2, partition, position, false FROM consumer_checkpoints WHERE consumer = $1`, events.GroupDeadLetter)))
	_, err = s.Pool.Exec(t.Context(), `INSERT INTO dead_letter_events SELECT 2, id, partition, tenant_id, stage, status, 'fixed', reason,
		details, producer_event_id, feature,
		source_position, topic, kafka_partition, kafka_offset, payload, retry_count, first_failed_at, last_failed_at FROM dead_letter_events
		WHERE tenant_id = $1`, tenants[0])
	s.Must(err)
	list := func(f events.DeadLetterFilter) (ids string) {
		q := deadletters.Query{DeadLetterFilter: f, Limit: 5}
		for {
			page, err := s.Reads.DeadLetters(t.Context(), Operator, q)
			s.Must(err)
			for _, d := range page.Data {
				ids += d.EventID + " "
				if d.Payload != nil || (d.TenantID == tenants[0]) != (d.Code == "fixed") {
					t.Errorf("%+v", d)
				}
			}
			if q.After = page.Next; q.After == "" {
				return ids
			}
		}
	}
	all := "e11 e10 e9 e8 e7 e6 e5 e4 e3 e2 e1 e0 "
	middle := s.Letter(s.Receipt(tenants[0], "e6").Rejected.DeadLetterID)
	for want, f := range map[string]events.DeadLetterFilter{
		all:                    {},
		all + "":               {Status: "FAILED", Stage: "VALIDATION"},
		"e11 e8 e5 e2 ":        {TenantID: &tenants[2], Reason: "no_active_subscription"},
		"e9 e6 e3 e0 ":         {Reason: "fixed"},
		"e11 e10 e9 e8 e7 e6 ": {From: &middle.FirstFailedAt},
		"e5 e4 e3 e2 e1 e0 ":   {To: &middle.FirstFailedAt},
		"":                     {Status: "RESOLVED"},
	} {
		if got := list(f); got != want {
			t.Errorf("%+v: got %q, want %q", f, got, want)
		}
	}
	if middle.Code != "fixed" {
		t.Errorf("one alone comes from the tenant's generation, too: %+v", middle)
	}
	RefusedAs(t, query.ErrCursorInvalid, Second(s.Reads.DeadLetters(t.Context(), Operator, deadletters.Query{After: "x"})))
}

// P5: however the topic is cut into batches, the rows are the same.
func TestP5_DeadLettersDoNotDependOnBatches(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewPipeline(t)
	s.Payloads.Allow() // of events that are not in the log
	other := s.AddSeparateGeneration(deadletters.Consumer(models.DefaultFolds().DeadLetters))
	rapid.Check(t, func(rt *rapid.T) {
		tenant := TenantIn(rapid.Int16Range(0, 31).Draw(rt, "partition"))
		var known []uuid.UUID
		for range rapid.IntRange(1, 15).Draw(rt, "events") {
			on := uuid.Nil
			if len(known) > 0 && rapid.Bool().Draw(rt, "again") {
				on = rapid.SampledFrom(known).Draw(rt, "on")
			}
			p := outcomeOf(rt, tenant, on)
			s.Append(p)
			known = append(known, p.EventID)
		}
		s.Lettering.Consumer.MaxPerPartition = rapid.IntRange(1, 30).Draw(rt, "batch")
		s.Drain(s.Lettering, other)
		var differ int
		s.Must(s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM (
			SELECT to_jsonb(d) - 'generation' FROM dead_letter_events d WHERE generation = 1 EXCEPT ALL
			SELECT to_jsonb(d) - 'generation' FROM dead_letter_events d WHERE generation = 2) d`).Scan(&differ))
		if differ != 0 {
			rt.Fatalf("%d rows differ", differ)
		}
		if n := countsThatDiffer(s); n != 0 {
			rt.Fatalf("%d rows of the counts differ from the dead letters", n)
		}
	})
}

func outcomeOf(rt *rapid.T, tenant, on uuid.UUID) events.Pending {
	attempt := rapid.IntRange(0, 3).Draw(rt, "attempt")
	switch rapid.IntRange(0, 5).Draw(rt, "event") {
	case 0:
		return Plain(tenant, events.UsageRejected, events.Counts{}, events.Rejected{EventID: "e", DeadLetterID: on, Attempt: attempt})
	case 1:
		return Plain(tenant, events.AggregationFailed, events.Counts{}, events.Failed{Stage: events.StageAggregation, DeadLetterID: on,
			Attempt: attempt})
	case 2:
		return Plain(tenant, events.DeadLetterRetried, events.Counts{}, events.RetryDone{DeadLetterID: on, Attempt: attempt})
	case 3:
		return Plain(tenant, events.DeadLetterClosed, events.Counts{}, events.Closed{DeadLetterID: on, Status: events.StatusResolved})
	case 4:
		return Plain(tenant, events.RetryRefused, events.Counts{}, events.Refused{DeadLetterID: on, Code: "c"})
	default:
		return Conflict(tenant, "e", events.Position{Number: 1}, NewID().String())
	}
}

// An unreadable event of the dead letter topic is lost, its neighbours are folded.
func TestDeadLetterFoldFailsAlone(t *testing.T) {
	s := NewPipeline(t)
	s.Payloads.Allow() // one of the wrong type
	tenant := NewID()
	bad := Plain(tenant, events.UsageRejected, events.Counts{}, events.Rejected{EventID: "bad"})
	bad.Payload = json.RawMessage(`{"deadLetterId":5}`)
	good := Plain(tenant, events.UsageRejected, events.Counts{}, events.Rejected{EventID: "good"})
	s.Append(bad, good)
	s.Drain(s.Lettering)
	if d := s.Letter(good.EventID); d.EventID != "good" {
		t.Errorf("%+v", d)
	}
	if _, err := s.Reads.DeadLetter(t.Context(), Operator, bad.EventID); !errors.Is(err, query.ErrNotFound) {
		t.Error(err)
	}
}
