package audit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay/cursors"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
)

// TestP12_ReceiptsOutliveThePlacesOfTheirRecords: once the publications have expired, a receipt reports the
// event as published at a place that is no longer known, and is otherwise equal. A pipe without offsets
// is no expired one.
func TestP12_ReceiptsOutliveThePlacesOfTheirRecords(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Quota("calls", 100, domain.LimitHard, domain.ResetMonthly))
	s.Append(Usage(tenant, "counted", "calls", 5, May.Add(time.Hour)), Usage(tenant, "rejected", "none", 7, May))
	s.Settle()
	s.Relayed(40)
	s.Settle()
	before := s.Receipt(tenant, "counted")
	letters := func() []deadletters.DeadLetter {
		page, err := s.Reads.DeadLetters(t.Context(), Operator, deadletters.Query{})
		s.Must(err)
		return page.Data
	}
	if len(letters()) != 1 || before.Published == nil || before.Published.Offset == nil {
		t.Fatalf("%+v, %+v", letters(), before)
	}
	s.Must(Second(s.Pool.Exec(t.Context(), `UPDATE outbox_publications SET base_offset = -1`)))
	if p := s.Receipt(tenant, "counted").Published; p == nil || p.Offset != nil || p.At != nil || p.Expired {
		t.Errorf("a pipe without offsets: %+v", p)
	}
	s.Must(Second(s.Pool.Exec(t.Context(), `DELETE FROM outbox_publications`)))
	for _, id := range []string{"counted", "rejected"} {
		if p := s.Receipt(tenant, id).Published; p == nil || p.Offset != nil || p.At != nil || !p.Expired ||
			p.Topic != events.TopicUsageRaw.Name() {
			t.Errorf("%s: %+v", id, p)
		}
	}
	after := s.Receipt(tenant, "counted")
	before.Published, after.Published = nil, nil
	was, err := json.Marshal(before)
	s.Must(err)
	if is, err := json.Marshal(after); err != nil || string(is) != string(was) || after.Status != projections.UsageAggregated {
		t.Errorf("the rest of the receipt: %s, was %s, %v", is, was, err)
	}
	lineage, err := s.Reads.Lineage(t.Context(), Operator, audit.LineageQuery{Ref: audit.EventRef{Position: &before.Recorded.Position},
		TenantID: &tenant, Span: 1000})
	if err != nil || len(lineage.Nodes) == 0 {
		t.Errorf("lineage: %+v, %v", lineage, err)
	}
	letter, err := s.Reads.DeadLetter(t.Context(), Operator, letters()[0].ID)
	if err != nil || letter.KafkaOffset != nil {
		t.Errorf("the dead letter: %+v, %v", letter, err)
	}
}

// During a rewind a receipt shows where the record was published last; an event behind the relay was never published.
func TestP12_ReceiptsKeepTheirPlacesDuringARewind(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	at := s.Append(Usage(tenant, "one", "calls", 5, May))[0]
	s.Settle()
	s.Relayed(40)
	s.Settle()
	before, end := s.Receipt(tenant, "one").Published, s.Head(tenant).Number
	s.Must(pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
		return cursors.Rewind(t.Context(), tx, []events.ReplayStep{{Partition: at.Partition, From: end, To: at.Number - 1}})
	}))
	s.Append(Usage(tenant, "two", "calls", 5, May))
	if p := s.Receipt(tenant, "one").Published; before == nil || !reflect.DeepEqual(p, before) {
		t.Errorf("published at %+v, before the rewind at %+v", p, before)
	}
	if p := s.Receipt(tenant, "two").Published; p != nil {
		t.Errorf("not published yet: %+v", p)
	}
}

func TestReceiptFollowsAnEvent(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	sub := s.Subscribe(tenant, May, Quota("calls", 100, domain.LimitHard, domain.ResetMonthly))
	event := Usage(tenant, "evt/1", "calls", 5, May.Add(time.Hour))
	event.Canonical = 1
	at := s.Append(event, Usage(tenant, "evt", "calls", 7, May))[0]
	s.Append(Conflict(tenant, "evt/1", at, "other"), Conflict(tenant, "evt", at, "that of another event"))

	got := s.Receipt(tenant, "evt/1")
	if got.Status != projections.UsagePending || got.Recorded.Position != at || got.Published != nil || got.Validated != nil ||
		got.Aggregated != nil ||
		got.CanonicalVersion != 1 || len(got.PayloadHash) != 64 || string(got.Payload) != string(event.Payload) ||
		got.Recorded.LogEventID != event.EventID {
		t.Fatalf("pending: %+v", got)
	}
	if len(got.Conflicts) != 1 || got.Conflicts[0].FirstPosition != at || len(s.Receipt(tenant, "evt").Conflicts) != 1 {
		t.Errorf("the conflicts of two events are distinguished: %+v", got.Conflicts)
	}
	s.Drain(s.Validating)
	s.Relayed(40)
	got = s.Receipt(tenant, "evt/1")
	if got.Status != projections.UsageValidated || got.Validated.SubscriptionID != sub.ID || got.Validated.PeriodKey != "2026-05" {
		t.Errorf("validated: %+v", got)
	}
	if p := s.Receipt(tenant, "evt").Published; p == nil || *p.Offset != 41 || p.Topic != "usage.raw" || p.At == nil || p.Expired {
		t.Errorf("the second record of the run that begins at offset 40: %+v", p)
	}
	s.Settle()
	got = s.Receipt(tenant, "evt/1")
	if got.Status != projections.UsageAggregated || got.Aggregated.SubscriptionID != sub.ID || got.AsOfPosition.Number < at.Number {
		t.Errorf("aggregated: %+v", got)
	}
	if len(got.DeadLetters) != 0 {
		t.Errorf("a conflict is no dead letter of the event that stays: %+v", got.DeadLetters)
	}
	for _, unknown := range []string{"evt_2", "evt/", "", "e\x00", "\xff"} {
		if _, err := s.Reads.Receipt(t.Context(), Operator, tenant, unknown, query.Wait{}); !errors.Is(err, query.ErrNotFound) {
			t.Errorf("%q: %v", unknown, err)
		}
	}
}

func TestReceiptOfARejectedAndRetriedEvent(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	at := s.Append(Usage(tenant, "e", "calls", 5, May))[0]
	s.Settle()
	got := s.Receipt(tenant, "e")
	if got.Status != projections.UsageRejected || got.Rejected == nil || got.Rejected.Code != "no_active_subscription" ||
		len(got.DeadLetters) != 1 {
		t.Fatalf("rejected: %+v", got)
	}
	letter := got.Rejected.DeadLetterID
	s.Retry(tenant, letter, at.Number, 1)
	s.Drain(s.Lettering)
	if got := s.Receipt(tenant, "e"); got.Status != projections.UsagePending || len(got.Retries) != 1 || got.Retries[0].Attempt != 1 {
		t.Errorf("retried: %+v", got)
	}
	s.Settle()
	if got := s.Receipt(tenant, "e"); got.Status != projections.UsageRejected || got.Rejected.Attempt != 1 ||
		got.DeadLetters[0].Status != events.StatusFailed {
		t.Errorf("rejected again: %+v", got)
	}
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	s.Retry(tenant, letter, at.Number, 2)
	s.Settle()
	if got := s.Receipt(tenant, "e"); got.Status != projections.UsageAggregated || len(got.Retries) != 2 ||
		got.DeadLetters[0].Status != events.StatusResolved {
		t.Errorf("counted at last: %+v", got)
	}
}

// Two tenants of a partition may name their events alike: an operator's receipt is of the tenant that is asked for,
// in each of its steps.
func TestP9_ReceiptsForOperatorsAreOfOneTenant(t *testing.T) {
	s := NewPipeline(t)
	one, other := TenantIn(9), TenantIn(9)
	for i, tenant := range []uuid.UUID{one, other} {
		s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
		at := s.Append(Usage(tenant, "counted", "calls", int64(5+i), May), Usage(tenant, "refused", "unknown", int64(5+i), May),
			Usage(tenant, fmt.Sprint("own ", i), "calls", 1, May))
		s.Append(Conflict(tenant, "counted", at[0], fmt.Sprint("other ", i)))
		s.Settle()
		s.Retry(tenant, s.Receipt(tenant, "refused").Rejected.DeadLetterID, at[1].Number, 1)
		s.Settle()
	}
	for _, tenant := range []uuid.UUID{one, other} {
		for _, id := range []string{"counted", "refused"} {
			got, err := s.Reads.Receipt(t.Context(), Operator, tenant, id, query.Wait{})
			s.Must(err)
			if want := s.Receipt(tenant, id); !reflect.DeepEqual(got, want) {
				t.Errorf("an operator's receipt of %s is %+v, the tenant's own %+v", id, got, want)
			}
			if len(got.Conflicts)+len(got.Retries) != 1 || len(got.DeadLetters) != len(got.Retries) {
				t.Errorf("%s has %d conflicts, %d retries and %d dead letters, want one conflict, or one retry and one letter", id,
					len(got.Conflicts), len(got.Retries), len(got.DeadLetters))
			}
		}
	}
	_, err := s.Reads.Receipt(t.Context(), Operator, other, "own 0", query.Wait{})
	RefusedAs(t, query.ErrNotFound, err)
}

// The checkpoint passes an event that fails to fold: the event must not look counted,
// even before its dead letter is folded.
func TestParkedEventsAreNotShownAsCounted(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly))
	s.Append(Usage(tenant, "good", "calls", 1, May), Usage(tenant, "bad", "panics", 1, May))
	broken, _ := s.BrokenAggregator()
	s.Drain(s.Validating, broken)
	for range 2 {
		if good, bad := s.Receipt(tenant, "good"), s.Receipt(tenant, "bad"); good.Status != projections.UsageAggregated ||
			bad.Status != projections.UsageDeadLettered {
			t.Errorf("good is %s, bad is %s", good.Status, bad.Status)
		}
		s.Settle()
	}
	page, err := s.Reads.UsageEvents(t.Context(), TenantViewer(tenant),
		audit.EventQuery{TenantID: tenant, Status: projections.UsageDeadLettered, Limit: 10})
	if err != nil || len(page.Data) != 1 || page.Data[0].EventID != "bad" {
		t.Errorf("%+v %v", page, err)
	}
}

// An entitlement fold that fails is beside the event's way: the event is counted.
func TestFoldFailuresOfAReadModelAreCounted(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("panics", domain.ResetMonthly))
	s.Append(Usage(tenant, "e", "panics", 1, May))
	poisonous := entitlements.Consumer(models.DefaultFolds().Entitlements, NewID)
	poisonous.Handler = PoisonedHandler{Handler: poisonous.Handler}
	broken, _ := s.Runner(poisonous)
	s.Drain(s.Validating, s.Aggregating, broken)
	for range 2 {
		if got := s.Receipt(tenant, "e"); got.Status != projections.UsageAggregated {
			t.Errorf("%s %+v", got.Status, got.DeadLetters)
		}
		s.Drain(s.Lettering)
	}
}

func TestUsageEventsPageThroughTheLog(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	neighbour := TenantIn(events.PartitionOf(tenant))
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	var want []string
	for i := range 30 {
		feature := []string{"calls", "unknown", "calls"}[i%3]
		s.Append(Usage(tenant, fmt.Sprint("e", i), feature, int64(i+1), May.Add(time.Duration(i)*time.Hour)),
			Usage(neighbour, fmt.Sprint("n", i), "calls", 1, May))
		want = append([]string{fmt.Sprint("e", i)}, want...)
	}
	s.Settle()
	all := func(q audit.EventQuery) (ids []string) {
		q.TenantID, q.Limit = tenant, 7
		for {
			page, err := s.Reads.UsageEvents(t.Context(), TenantViewer(tenant), q)
			s.Must(err)
			for _, row := range page.Data {
				ids = append(ids, row.EventID)
				if rejected := row.Feature == "unknown"; rejected != (row.Status == projections.UsageRejected) ||
					rejected != (row.Code == "feature_not_found") {
					t.Errorf("%+v", row)
				}
			}
			if q.After = page.Next; q.After == "" {
				return ids
			}
		}
	}
	if got := all(audit.EventQuery{}); !reflect.DeepEqual(got, want) {
		t.Errorf("newest first: %v", got)
	}
	if got := all(audit.EventQuery{Status: projections.UsageRejected}); len(got) != 10 || got[0] != "e28" {
		t.Errorf("rejected: %v", got)
	}
	if got := all(audit.EventQuery{Feature: "calls"}); len(got) != 20 {
		t.Errorf("of a feature: %v", got)
	}
	from, to := May.Add(3*time.Hour), May.Add(6*time.Hour)
	if got := all(audit.EventQuery{From: &from, To: &to}); !reflect.DeepEqual(got, []string{"e5", "e4", "e3"}) {
		t.Errorf("of a time, half open: %v", got)
	}
	if _, err := s.Reads.UsageEvents(t.Context(), Operator, audit.EventQuery{TenantID: tenant, Limit: 1, After: "x"}); !errors.Is(err,
		query.ErrCursorInvalid) {
		t.Errorf("a forged cursor: %v", err)
	}
}

func TestConflictsAreListed(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	first := s.Append(Usage(tenant, "b", "calls", 1, May))[0]
	for i := range 5 {
		s.Append(Conflict(tenant, []string{"b", "a/x", "c"}[i%3], first, fmt.Sprint(i)))
	}
	var got []string
	for after := ""; ; {
		page, err := s.Reads.Conflicts(t.Context(), TenantViewer(tenant), tenant, 2, after, query.Wait{})
		s.Must(err)
		for _, c := range page.Data {
			got = append(got, c.EventID)
			if c.FirstPosition != first || len(c.FirstHash) != 64 || len(c.ConflictHash) != 64 || c.At.IsZero() {
				t.Errorf("%+v", c)
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if want := []string{"a/x", "a/x", "b", "b", "c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
