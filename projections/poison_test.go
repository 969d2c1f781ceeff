package projections_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// A poison event becomes one dead letter, however it fails, and its
// neighbours are folded exactly once.
func TestP2_PoisonLeavesItsNeighboursExact(t *testing.T) {
	w := newLogFixture(t)
	w.payloads.Allow() // poison
	a, b := tenantIn(11), tenantIn(12)
	features := []string{"panics", "refused", "raised", "\x00"}
	var pending []events.Pending
	for i := range 64 {
		pending = append(pending, verdict(a, "calls", 1), verdict(b, "calls", 1))
		if i%20 == 0 {
			pending = append(pending, verdict(a, features[i/20], 1))
		}
	}
	bad := verdict(b, "calls", 1)
	bad.Payload = json.RawMessage(`{"periodKey":"someday"}`)
	w.append(append(pending, bad)...)
	r, seen := w.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	records := append(w.topic(events.TopicUsageValidated, 11, 0), w.topic(events.TopicUsageValidated, 12, 0)...)
	w.process(r, records)
	w.process(r, records)
	if got := w.aggregates(); len(got) != 2 || w.applied(a, "calls") != 64 || w.applied(b, "calls") != 64 {
		t.Fatalf("aggregates %+v", got)
	}
	codes := map[string]int{}
	for _, p := range []int16{11, 12} {
		for _, e := range w.read(events.TopicUsageDeadLetter, p, 0) {
			failed := decode[events.Failed](w, e)
			codes[failed.Code]++
			if failed.Reason == "" || failed.Stage != events.StageAggregation || failed.Topic != "usage.validated" || failed.SourceSubject != "meterplex.usage.event.validated.v1" {
				t.Errorf("%+v", failed)
			}
		}
	}
	if fmt.Sprint(codes) != "map[data_refused:3 fold_failed:1 fold_panicked:1]" || seen.failed != 5 {
		t.Errorf("codes %v, told %+v", codes, seen)
	}
	if c := w.counts(11); c.Parked != 4 {
		t.Errorf("parked %d, want 4", c.Parked)
	}
}

// A retry that fails again updates the first dead letter; one that succeeds closes it.
func TestReaggregatedFoldsAndClosesItsLetter(t *testing.T) {
	w := newLogFixture(t)
	tenant := tenantIn(6)
	first := newID()
	again := func(attempt int, period string) events.Pending {
		p := verdict(tenant, "calls", 5)
		var v events.Validated
		w.must(json.Unmarshal(p.Payload, &v))
		v.PeriodKey = period
		p.Subject, p.DedupeKey, p.Counts = events.Reaggregated, events.KeyRetry(first, attempt), events.Counts{Parked: -1}
		var err error
		p.Payload, err = json.Marshal(events.Reaggregate{DeadLetterID: first, Attempt: attempt, Validated: v})
		w.must(err)
		return p
	}
	w.append(again(1, "someday"), again(2, "2026-05"))
	r, _ := w.aggregator(nil)
	w.process(r, w.topic(events.TopicUsageValidated, 6, 0))
	letters := w.read(events.TopicUsageDeadLetter, 6, 0)
	if len(letters) != 2 || w.applied(tenant, "calls") != 1 {
		t.Fatalf("%d letters, aggregates %+v", len(letters), w.aggregates())
	}
	byKey := map[string]events.Envelope{letters[0].DedupeKey: letters[0], letters[1].DedupeKey: letters[1]}
	failed, closed := byKey[events.KeyFailedAgain(first, 1)], byKey[events.KeyClosed(first)]
	if f := decode[events.Failed](w, failed); f.DeadLetterID != first || f.Attempt != 1 {
		t.Errorf("failed again %+v", f)
	}
	if c := decode[events.Closed](w, closed); c.DeadLetterID != first || c.Status != events.StatusResolved {
		t.Errorf("closed %+v", c)
	}
	if got := w.counts(6); got.Parked != -1 { // two retries took two away, one failure put one back
		t.Errorf("parked %d", got.Parked)
	}
}

// A dead letter names its record on the topic. So an event that was handed over ahead of the pipe, and
// cannot be folded, waits for the pipe.
func TestP3_AHandedEventThatFailsComesByThePipe(t *testing.T) {
	w := newLogFixture(t)
	w.payloads.Allow() // one is no verdict
	panics := func(tenant uuid.UUID) events.Pending { return verdict(tenant, "panics", 1) }
	noVerdict := func(tenant uuid.UUID) events.Pending {
		bad := verdict(tenant, "calls", 1)
		bad.Payload = json.RawMessage(`{}`)
		return bad
	}
	for p, fails := range map[int16]func(uuid.UUID) events.Pending{11: panics, 12: noVerdict} {
		tenant := tenantIn(p)
		aggregator, _ := w.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
		aggregator.Handed = consume.NewHandover()
		handed := consume.Handovers{events.TopicUsageValidated: aggregator.Handed}
		w.append(verdict(tenant, "calls", 1))
		w.process(aggregator, w.topic(events.TopicUsageValidated, p, 0))
		at := w.append(fails(tenant), verdict(tenant, "calls", 1))
		if n := handed.Pass(separate(w.read(events.TopicUsageValidated, p, at[0].Number-1))); n != 2 {
			t.Fatalf("%d events follow what the aggregator reached, want 2", n)
		}
		if n, err := aggregator.ProcessHanded(t.Context()); err != nil || n != 0 {
			t.Errorf("folded %d events ahead of the pipe, want none: %v", n, err)
		}
		if letters := w.read(events.TopicUsageDeadLetter, p, 0); len(letters) != 0 {
			t.Errorf("ahead of the pipe %+v", letters)
		}
		w.process(aggregator, w.topic(events.TopicUsageValidated, p, 0))
		letters := w.read(events.TopicUsageDeadLetter, p, 0)
		if len(letters) != 1 || decode[events.Failed](w, letters[0]).KafkaOffset != 1 || w.applied(tenant, "calls") != 2 {
			t.Errorf("from the pipe %+v, %d calls applied", letters, w.applied(tenant, "calls"))
		}
	}
}
