package projections_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay/cursors"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// TestP12_ReceiptsOutliveThePlacesOfTheirRecords: once the publications have expired, a receipt reports the
// event as published at a place that is no longer known, and is otherwise equal. A pipe without offsets
// is no expired one.
func TestP12_ReceiptsOutliveThePlacesOfTheirRecords(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, quota("calls", 100, domain.LimitHard, domain.ResetMonthly))
	s.append(usageEvent(tenant, "counted", "calls", 5, may.Add(time.Hour)), usageEvent(tenant, "rejected", "none", 7, may))
	s.settle()
	s.relayed(40)
	s.settle()
	before := s.receipt(tenant, "counted")
	letters := func() []deadletters.DeadLetter {
		page, err := s.reads.DeadLetters(t.Context(), operator, deadletters.DeadLetterQuery{})
		s.must(err)
		return page.Data
	}
	if len(letters()) != 1 || before.Published == nil || before.Published.Offset == nil {
		t.Fatalf("%+v, %+v", letters(), before)
	}
	s.must(second(s.pool.Exec(t.Context(), `UPDATE outbox_publications SET base_offset = -1`)))
	if p := s.receipt(tenant, "counted").Published; p == nil || p.Offset != nil || p.At != nil || p.Expired {
		t.Errorf("a pipe without offsets: %+v", p)
	}
	s.must(second(s.pool.Exec(t.Context(), `DELETE FROM outbox_publications`)))
	for _, id := range []string{"counted", "rejected"} {
		if p := s.receipt(tenant, id).Published; p == nil || p.Offset != nil || p.At != nil || !p.Expired || p.Topic != events.TopicUsageRaw.Name() {
			t.Errorf("%s: %+v", id, p)
		}
	}
	after := s.receipt(tenant, "counted")
	before.Published, after.Published = nil, nil
	was, err := json.Marshal(before)
	s.must(err)
	if is, err := json.Marshal(after); err != nil || string(is) != string(was) || after.Status != projections.UsageAggregated {
		t.Errorf("the rest of the receipt: %s, was %s, %v", is, was, err)
	}
	lineage, err := s.reads.Lineage(t.Context(), operator, audit.LineageQuery{Ref: audit.EventRef{Position: &before.Recorded.Position}, TenantID: &tenant, Span: 1000})
	if err != nil || len(lineage.Nodes) == 0 {
		t.Errorf("lineage: %+v, %v", lineage, err)
	}
	letter, err := s.reads.DeadLetter(t.Context(), operator, letters()[0].ID)
	if err != nil || letter.KafkaOffset != nil {
		t.Errorf("the dead letter: %+v, %v", letter, err)
	}
}

// During a rewind a receipt shows where the record was published last; an event behind the relay was never published.
func TestP12_ReceiptsKeepTheirPlacesDuringARewind(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "one", "calls", 5, may))[0]
	s.settle()
	s.relayed(40)
	s.settle()
	before, end := s.receipt(tenant, "one").Published, s.head(tenant).Number
	s.must(pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		return cursors.Rewind(t.Context(), tx, []events.ReplayStep{{Partition: at.Partition, From: end, To: at.Number - 1}})
	}))
	s.append(usageEvent(tenant, "two", "calls", 5, may))
	if p := s.receipt(tenant, "one").Published; before == nil || !reflect.DeepEqual(p, before) {
		t.Errorf("published at %+v, before the rewind at %+v", p, before)
	}
	if p := s.receipt(tenant, "two").Published; p != nil {
		t.Errorf("not published yet: %+v", p)
	}
}
