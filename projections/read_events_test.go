package projections_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

func places(list []events.Envelope) (all []string) {
	for _, e := range list {
		all = append(all, e.Position.String())
	}
	return all
}

// list reads every page, and lets more be recorded between them.
func (d *history) list(v query.Viewer, f audit.EventFilter, after audit.Frontier, limit int, between func()) (all []events.Envelope) {
	d.Helper()
	for {
		page, err := d.reads.Events(context.Background(), v, audit.LogQuery{EventFilter: f, After: after, Limit: limit})
		d.must(err)
		all = append(all, page.Data...)
		if page.Next == nil {
			return all
		}
		after = after.Join(audit.AfterPosition(*page.Next))
		between()
	}
}

// With any filter and concurrent recording, pages hold the events that a scan of the
// whole log finds, once and in its order; a tenant sees its own.
func TestListedEventsMatchTheLog(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := newPipelineFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := newHistory(s)
		for range rapid.IntRange(3, 15).Draw(rt, "steps") {
			d.addStep(rt)
		}
		own, all := d.readAll()
		for range 5 {
			f, want := someFilter(rt, d, own)
			viewer, log, limit := tenantViewer(d.tenant), own, rapid.IntRange(1, 7).Draw(rt, "limit")
			if f.Stream.Kind != "usage" && rapid.Bool().Draw(rt, "operator") {
				viewer, log, f.TenantID, limit = operator, all, nil, 100*limit
			}
			after := audit.AfterPosition(events.Position{Partition: d.partition, Number: rapid.Int64Range(0, own[len(own)-1].Position.Number).Draw(rt, "after")})
			var expected []string
			for i := range log {
				if want(&log[i]) && log[i].Position.Number > after[d.partition] {
					expected = append(expected, log[i].Position.String())
				}
			}
			end := log[len(log)-1].Position.Number
			got := d.list(viewer, f, after, limit, more(3, func() { d.record(rt) }))
			got = slices.DeleteFunc(got, func(e events.Envelope) bool { return e.Position.Partition != d.partition || e.Position.Number > end })
			if !slices.Equal(places(got), expected) {
				rt.Fatalf("%+v by %+v, after %d: %v instead of %v", f, viewer, after[d.partition], places(got), expected)
			}
		}
		d.checkFates(rt)
	})
}

// checkFates reads the stream of the last event of each subject that an event may meet after its verdict.
func (d *history) checkFates(rt *rapid.T) {
	if rapid.IntRange(0, 3).Draw(rt, "failures") == 0 {
		d.addFailures()
	}
	d.drain(d.lettering)
	own, _ := d.readAll()
	ids := map[events.Subject]string{}
	for _, e := range own {
		if id := producerID.FindStringSubmatch(string(e.Payload)); id != nil && e.Subject > events.UsageValidated && e.Subject < events.TenantCreated {
			var text string
			d.must(json.Unmarshal([]byte(id[1]), &text))
			ids[e.Subject] = text
		}
	}
	for subject, id := range ids {
		f := audit.EventFilter{TenantID: &d.tenant, Stream: audit.Stream{Kind: "usage", ID: id}}
		want := slices.DeleteFunc(slices.Clone(own), func(e events.Envelope) bool { return !inUsageStream(own, id)(&e) })
		if got := d.list(tenantViewer(d.tenant), f, audit.Frontier{}, 100, func() {}); !slices.Equal(places(got), places(want)) {
			rt.Fatalf("the stream of %s, which has a %d: %v instead of %v", id, subject, places(got), places(want))
		}
	}
}

// producerID finds the producer's id of an event, in JSON.
var producerID = regexp.MustCompile(`"eventId":("[^"]+")`)

// more calls do n times, then never: a log that keeps growing is never read whole.
func more(n int, do func()) func() {
	return func() {
		if n--; n >= 0 {
			do()
		}
	}
}

// someFilter draws a filter and its predicate.
func someFilter(rt *rapid.T, d *history, own []events.Envelope) (audit.EventFilter, func(*events.Envelope) bool) {
	f := audit.EventFilter{TenantID: &d.tenant}
	some := &own[rapid.IntRange(0, len(own)-1).Draw(rt, "some")]
	other := &own[rapid.IntRange(0, len(own)-1).Draw(rt, "other")]
	switch rapid.SampledFrom([]string{"all", "subject", "correlation", "time", "usage", "letter"}).Draw(rt, "filter") {
	case "subject":
		f.Subjects = []events.Subject{some.Subject, other.Subject}
		return f, func(e *events.Envelope) bool { return slices.Contains(f.Subjects, e.Subject) }
	case "correlation":
		f.CorrelationID = some.CorrelationID
		return f, func(e *events.Envelope) bool {
			return some.CorrelationID == uuid.Nil || e.CorrelationID == some.CorrelationID
		}
	case "time":
		from, to := some.RecordedAt, other.RecordedAt
		f.From, f.To = &from, &to
		return f, func(e *events.Envelope) bool { return !e.RecordedAt.Before(from) && e.RecordedAt.Before(to) }
	case "usage":
		d.drain(d.lettering)
		f.Stream = audit.Stream{Kind: "usage", ID: escapedID(rapid.IntRange(1, max(1, d.sent)).Draw(rt, "event"))}
		return f, inUsageStream(own, f.Stream.ID)
	case "letter":
		id := letterIn(some)
		f.Stream = audit.Stream{Kind: "dead-letter", ID: id.String()}
		return f, func(e *events.Envelope) bool {
			usual := e.Subject == events.UsageRecorded || e.Subject == events.UsageValidated || e.Subject > 29
			return !usual && (e.EventID == id || letterIn(e) == id)
		}
	}
	return f, func(*events.Envelope) bool { return true }
}

func letterIn(e *events.Envelope) uuid.UUID {
	var p struct {
		DeadLetterID uuid.UUID `json:"deadLetterId"`
	}
	_ = json.Unmarshal(e.Payload, &p)
	if p.DeadLetterID == uuid.Nil {
		return e.EventID
	}
	return p.DeadLetterID
}

// inUsageStream is the stream by its definition: events that name the event or one
// of its dead letters.
func inUsageStream(log []events.Envelope, id string) func(*events.Envelope) bool {
	in, letters := map[int64]bool{}, map[uuid.UUID]bool{}
	quoted, _ := json.Marshal(id)
	for _, e := range log {
		if e.Subject < 30 && strings.Contains(string(e.Payload), `"eventId":`+string(quoted)) {
			in[e.Position.Number] = true
			if e.Subject != events.UsageRecorded && e.Subject != events.UsageValidated {
				letters[letterIn(&e)] = true
			}
		}
	}
	return func(e *events.Envelope) bool { return in[e.Position.Number] || letters[letterIn(e)] }
}

// Every event is found by its id, without an index of ids, by permitted viewers.
func TestEveryEventIsFoundByItsID(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := newPipelineFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := newHistory(s)
		for range rapid.IntRange(3, 15).Draw(rt, "steps") {
			d.addStep(rt)
		}
		own, _ := d.readAll()
		for range 4 {
			e := own[rapid.IntRange(0, len(own)-1).Draw(rt, "event")]
			for name, tenant := range map[string]*uuid.UUID{"any": nil, "its own": &d.tenant} {
				got, err := s.reads.Event(context.Background(), operator, audit.EventRef{ID: e.EventID}, tenant)
				if err != nil || wire(got) != wire(e) || got.Previous != e.Previous {
					rt.Fatalf("%s by its id, of %s tenant: %v, %s instead of %s", e.DedupeKey, name, err, wire(got), wire(e))
				}
			}
			for _, ref := range []audit.EventRef{{ID: e.EventID}, {Position: &e.Position}} {
				if got, err := s.reads.Event(context.Background(), tenantViewer(d.tenant), ref, &d.tenant); err != nil || got.EventID != e.EventID {
					rt.Fatalf("%s to its tenant: %v", e.DedupeKey, err)
				}
				for _, asked := range []*uuid.UUID{nil, &d.tenant, &d.neighbour} {
					if _, err := s.reads.Event(context.Background(), tenantViewer(d.neighbour), ref, asked); !errors.Is(err, query.ErrNotFound) {
						rt.Fatalf("%s to a neighbour: %v", e.DedupeKey, err)
					}
				}
			}
		}
	})
	for _, unknown := range []uuid.UUID{newID(), uuid.New(), uuid.Nil, uuid.Max} {
		_, err := s.reads.Event(t.Context(), operator, audit.EventRef{ID: unknown}, nil)
		refusedAs(t, query.ErrNotFound, err)
	}
}

func wire(e events.Envelope) string {
	text, _ := codec.AppendWire(nil, &e)
	return string(text)
}

// An id made before or after its event's recording is found within the documented
// bound, and beyond it in a short log.
func TestIDsAreFoundAroundTheirTime(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	ids := map[uuid.UUID]bool{}
	for off, near := range map[time.Duration]bool{-9 * time.Second: true, 2 * time.Second: true, 14 * time.Minute: true, -time.Minute: false,
		20 * time.Minute: false, 49 * time.Hour: false, -49 * time.Hour: false} {
		e := usageEvent(tenant, off.String(), "calls", 1, may)
		e.EventID = idOf(time.Now().Add(-off))
		s.append(e)
		ids[e.EventID] = near
	}
	look := func(log string, long bool, of *uuid.UUID) {
		t.Helper()
		for id, near := range ids {
			_, err := s.reads.Event(t.Context(), operator, audit.EventRef{ID: id}, of)
			if found := err == nil; found != (near || !long) {
				t.Errorf("near %v, in %s: %v", near, log, err)
			}
			if err != nil && (!errors.Is(err, query.ErrNotFound) || !strings.Contains(err.Error(), "name the position instead")) {
				t.Errorf("%s: %v", log, err)
			}
		}
	}
	look("a short log", false, nil)
	other := (events.PartitionOf(tenant) + 1) % 32
	if _, err := s.pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 300000 WHERE partition = $1`, other); err != nil {
		t.Fatal(err)
	}
	look("a long log", true, nil)
	look("the tenant's own, which is short", false, &tenant)
}

// idOf is a UUIDv7 of a time (RFC 9562, section 5.7).
func idOf(at time.Time) uuid.UUID {
	id := newID()
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	return id
}

// Each kind of stream holds its aggregate's events.
func TestStreamsOfTheCatalogue(t *testing.T) {
	s := newPipelineFixture(t)
	s.payloads.Allow() // they have ids only
	tenant, one, two := newID(), newID(), newID()
	m := func(pairs ...string) map[string]any {
		payload := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			payload[pairs[i]] = pairs[i+1]
		}
		return payload
	}
	at := s.append(
		plainEvent(tenant, events.TenantCreated, events.Counts{}, m("id", tenant.String())),
		plainEvent(tenant, events.APIKeyCreated, events.Counts{}, m("id", one.String(), "tenantId", tenant.String())),
		plainEvent(tenant, events.APIKeyRotated, events.Counts{}, map[string]any{"old": m("id", one.String()), "new": m("id", two.String())}),
		plainEvent(tenant, events.APIKeyRevoked, events.Counts{}, m("id", two.String())),
		plainEvent(tenant, events.SubscriptionCreated, events.Counts{}, m("id", one.String(), "plan", "pro")),
		plainEvent(events.Platform, events.FeatureDefined, events.Counts{}, m("lookupKey", "calls")),
		plainEvent(events.Platform, events.PlanDefined, events.Counts{}, m("key", "pro")),
		plainEvent(events.Platform, events.PlanDefined, events.Counts{}, m("key", "calls")),
	)
	for stream, want := range map[string][]int{
		"tenant/" + tenant.String(): {0}, "api-key/" + one.String(): {1, 2}, "api-key/" + two.String(): {2, 3}, "subscription/" + one.String(): {4},
		"feature/calls": {5}, "plan/pro": {6}, "plan/calls": {7}, "feature/pro": nil, "tenant/" + one.String(): nil, "rebuild/" + one.String(): nil,
		"dead-letter/" + one.String(): nil,
	} {
		parsed, err := audit.ParseStream(stream)
		s.must(err)
		page, err := s.reads.Events(t.Context(), operator, audit.LogQuery{EventFilter: audit.EventFilter{Stream: parsed}, Limit: 100})
		s.must(err)
		var expected []string
		for _, i := range want {
			expected = append(expected, at[i].String())
		}
		if !slices.Equal(places(page.Data), expected) || page.Next != nil {
			t.Errorf("%s: %v instead of %v, next %v", stream, places(page.Data), expected, page.Next)
		}
	}
	for _, bad := range []string{"", "usage", "usage/", "tenants/x", "tenant/x", "api-key/" + strings.ToUpper(one.String()), "plan/a\x00", "plan/\xff"} {
		if _, err := audit.ParseStream(bad); !errors.Is(err, audit.ErrStreamInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSubjectsAreFilteredByName(t *testing.T) {
	for name, n := range map[string]int{"meterplex.usage.event.recorded.v1": 1, "meterplex.usage.event.recorded": 1, "meterplex.": len(events.Subjects()),
		"meterplex": len(events.Subjects()), "meterplex.catalogue.tenant.": 2, "meterplex.catalogue.tenant": 2} {
		if got, err := audit.SubjectsOf(name); err != nil || len(got) != n {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	for _, name := range []string{"", "meterplex.usage.event.recorded.v2", "meterplex.usage.event.recorded.v", "meter", "Meterplex.", ".", "usage"} {
		if _, err := audit.SubjectsOf(name); !errors.Is(err, audit.ErrSubjectUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestFrontiersAreReadAsTheyAreWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var f audit.Frontier
		for p := range f {
			f[p] = rapid.Int64Range(0, 1<<62).Draw(rt, "number")
		}
		if got, err := audit.ParseFrontier(f.String()); err != nil || got != f {
			rt.Fatal(got, err)
		}
	})
	got, err := audit.ParseFrontier("2-7")
	if err != nil || got[1] == 0 || got[2] != 7 || got[3] != 0 {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "2", "2-7,", "2-7,2-8", "32-1,1-1", "2-7, 3-1", "2-07,3-1", strings.Repeat("1-1,", 40) + "1-1"} {
		refusedAs(t, query.ErrPositionInvalid, second(audit.ParseFrontier(bad)))
	}
}

// A page scans a bounded part of the log and returns the end of that part.
func TestPagesOfRareEventsAreBounded(t *testing.T) {
	tier.AtSize(t)
	s := newPipelineFixture(t)
	tenant := newID()
	neighbour := tenantIn(events.PartitionOf(tenant))
	s.append(usageEvent(tenant, "first", "calls", 1, may))
	batch := make([]events.Pending, 0, 1000)
	for n := range 110_000 { // more than a page scans
		batch = append(batch, usageEvent(neighbour, fmt.Sprint(n), "calls", 1, may))
		if len(batch) == cap(batch) {
			s.append(batch...)
			batch = batch[:0]
		}
	}
	s.append(usageEvent(tenant, "last", "calls", 1, may))
	q := audit.LogQuery{EventFilter: audit.EventFilter{TenantID: &tenant}, Limit: 10}
	page, err := s.reads.Events(t.Context(), tenantViewer(tenant), q)
	if err != nil || len(page.Data) != 1 || page.Next == nil {
		t.Fatalf("%d events, next %v, %v", len(page.Data), page.Next, err)
	}
	q.After = audit.AfterPosition(*page.Next)
	page, err = s.reads.Events(t.Context(), tenantViewer(tenant), q)
	if err != nil || len(page.Data) != 1 || page.Next != nil || page.Data[0].DedupeKey != "u/last" {
		t.Errorf("%d events, next %v, %v", len(page.Data), page.Next, err)
	}
}
