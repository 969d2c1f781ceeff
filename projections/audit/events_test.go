package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

func positions(list []events.Envelope) (all []string) {
	for _, e := range list {
		all = append(all, e.Position.String())
	}
	return all
}

// listEvents reads every page, and lets more be recorded between them.
func listEvents(d *History, v query.Viewer, f audit.EventFilter, after audit.Frontier, limit int, between func()) (all []events.Envelope) {
	d.Helper()
	for {
		page, err := d.Reads.Events(context.Background(), v, audit.LogQuery{EventFilter: f, After: after, Limit: limit})
		d.Must(err)
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
	s := NewPipeline(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(s)
		for range rapid.IntRange(3, 15).Draw(rt, "steps") {
			d.AddStep(rt)
		}
		own, all := d.ReadAll()
		for range 5 {
			f, want := someFilter(rt, d, own)
			viewer, log, limit := TenantViewer(d.Tenant), own, rapid.IntRange(1, 7).Draw(rt, "limit")
			if f.Stream.Kind != "usage" && rapid.Bool().Draw(rt, "operator") {
				viewer, log, f.TenantID, limit = Operator, all, nil, 100*limit
			}
			after := audit.AfterPosition(events.Position{Partition: d.Partition,
				Number: rapid.Int64Range(0, own[len(own)-1].Position.Number).Draw(rt, "after")})
			var expected []string
			for i := range log {
				if want(&log[i]) && log[i].Position.Number > after[d.Partition] {
					expected = append(expected, log[i].Position.String())
				}
			}
			end := log[len(log)-1].Position.Number
			got := listEvents(d, viewer, f, after, limit, more(3, func() { d.Record(rt) }))
			got = slices.DeleteFunc(got, func(e events.Envelope) bool {
				return e.Position.Partition != d.Partition || e.Position.Number > end
			})
			if !slices.Equal(positions(got), expected) {
				rt.Fatalf("%+v by %+v, after %d: %v instead of %v", f, viewer, after[d.Partition], positions(got), expected)
			}
		}
		checkFates(d, rt)
	})
}

// checkFates reads the stream of the last event of each subject that an event may meet after its verdict.
func checkFates(d *History, rt *rapid.T) {
	if rapid.IntRange(0, 3).Draw(rt, "failures") == 0 {
		d.AddFailures()
	}
	d.Append(Usage(d.Tenant, "retried", "panics", 1, May))
	d.Rest()
	d.Retry(func(int) int { return 0 }, 1) // its verdict, which failed last
	d.Drain(d.Lettering)
	own, _ := d.ReadAll()
	ids := map[events.Subject]string{}
	for _, e := range own {
		if id := producerID.FindStringSubmatch(string(e.Payload)); id != nil && e.Subject > events.UsageValidated &&
			e.Subject < events.TenantCreated {
			var text string
			d.Must(json.Unmarshal([]byte(id[1]), &text))
			ids[e.Subject] = text
		}
	}
	for subject, id := range ids {
		f := audit.EventFilter{TenantID: &d.Tenant, Stream: audit.Stream{Kind: "usage", ID: id}}
		want := slices.DeleteFunc(slices.Clone(own), func(e events.Envelope) bool { return !inUsageStream(own, id)(&e) })
		if got := listEvents(d, TenantViewer(d.Tenant), f, audit.Frontier{}, 100, func() {}); !slices.Equal(positions(got), positions(want)) {
			rt.Fatalf("the stream of %s, which has a %d: %v instead of %v", id, subject, positions(got), positions(want))
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
func someFilter(rt *rapid.T, d *History, own []events.Envelope) (audit.EventFilter, func(*events.Envelope) bool) {
	f := audit.EventFilter{TenantID: &d.Tenant}
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
		d.Drain(d.Lettering)
		f.Stream = audit.Stream{Kind: "usage", ID: EscapedID(rapid.IntRange(1, max(1, d.Sent)).Draw(rt, "event"))}
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
	s := NewPipeline(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(s)
		for range rapid.IntRange(3, 15).Draw(rt, "steps") {
			d.AddStep(rt)
		}
		own, _ := d.ReadAll()
		for range 4 {
			e := own[rapid.IntRange(0, len(own)-1).Draw(rt, "event")]
			for name, tenant := range map[string]*uuid.UUID{"any": nil, "its own": &d.Tenant} {
				got, err := s.Reads.Event(context.Background(), Operator, audit.EventRef{ID: e.EventID}, tenant)
				if err != nil || wire(got) != wire(e) || got.Previous != e.Previous {
					rt.Fatalf("%s by its id, of %s tenant: %v, %s instead of %s", e.DedupeKey, name, err, wire(got), wire(e))
				}
			}
			for _, ref := range []audit.EventRef{{ID: e.EventID}, {Position: &e.Position}} {
				if got, err := s.Reads.Event(context.Background(), TenantViewer(d.Tenant), ref, &d.Tenant); err != nil ||
					got.EventID != e.EventID {
					rt.Fatalf("%s to its tenant: %v", e.DedupeKey, err)
				}
				for _, asked := range []*uuid.UUID{nil, &d.Tenant, &d.Neighbour} {
					if _, err := s.Reads.Event(context.Background(), TenantViewer(d.Neighbour), ref, asked); !errors.Is(err,
						query.ErrNotFound) {
						rt.Fatalf("%s to a neighbour: %v", e.DedupeKey, err)
					}
				}
			}
		}
	})
	for _, unknown := range []uuid.UUID{NewID(), uuid.New(), uuid.Nil, uuid.Max} {
		_, err := s.Reads.Event(t.Context(), Operator, audit.EventRef{ID: unknown}, nil)
		RefusedAs(t, query.ErrNotFound, err)
	}
}

func wire(e events.Envelope) string {
	text, _ := codec.AppendWire(nil, &e)
	return string(text)
}

// An id made before or after its event's recording is found within the documented
// bound, and beyond it in a short log.
func TestIDsAreFoundAroundTheirTime(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	ids := map[uuid.UUID]bool{}
	for off, near := range map[time.Duration]bool{-9 * time.Second: true, 2 * time.Second: true, 14 * time.Minute: true,
		-time.Minute:     false,
		20 * time.Minute: false, 49 * time.Hour: false, -49 * time.Hour: false} {
		e := Usage(tenant, off.String(), "calls", 1, May)
		e.EventID = idOf(time.Now().Add(-off))
		s.Append(e)
		ids[e.EventID] = near
	}
	look := func(log string, long bool, of *uuid.UUID) {
		t.Helper()
		for id, near := range ids {
			_, err := s.Reads.Event(t.Context(), Operator, audit.EventRef{ID: id}, of)
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
	if _, err := s.Pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 300000 WHERE partition = $1`, other); err != nil {
		t.Fatal(err)
	}
	look("a long log", true, nil)
	look("the tenant's own, which is short", false, &tenant)
}

// idOf is a UUIDv7 of a time (RFC 9562, section 5.7).
func idOf(at time.Time) uuid.UUID {
	id := NewID()
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	return id
}

// Each kind of stream holds its aggregate's events.
func TestStreamsOfTheCatalogue(t *testing.T) {
	s := NewPipeline(t)
	s.Payloads.Allow() // they have ids only
	tenant, one, two := NewID(), NewID(), NewID()
	m := func(pairs ...string) map[string]any {
		payload := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			payload[pairs[i]] = pairs[i+1]
		}
		return payload
	}
	at := s.Append(
		Plain(tenant, events.TenantCreated, events.Counts{}, m("id", tenant.String())),
		Plain(tenant, events.APIKeyCreated, events.Counts{}, m("id", one.String(), "tenantId", tenant.String())),
		Plain(tenant, events.APIKeyRotated, events.Counts{}, map[string]any{"old": m("id", one.String()), "new": m("id", two.String())}),
		Plain(tenant, events.APIKeyRevoked, events.Counts{}, m("id", two.String())),
		Plain(tenant, events.SubscriptionCreated, events.Counts{}, m("id", one.String(), "plan", "pro")),
		Plain(events.Platform, events.FeatureDefined, events.Counts{}, m("lookupKey", "calls")),
		Plain(events.Platform, events.PlanDefined, events.Counts{}, m("key", "pro")),
		Plain(events.Platform, events.PlanDefined, events.Counts{}, m("key", "calls")),
	)
	for stream, want := range map[string][]int{
		"tenant/" + tenant.String(): {0}, "api-key/" + one.String(): {1, 2}, "api-key/" + two.String(): {2, 3},
		"subscription/" + one.String(): {4},
		"feature/calls":                {5}, "plan/pro": {6}, "plan/calls": {7}, "feature/pro": nil, "tenant/" + one.String(): nil,
		"rebuild/" + one.String():     nil,
		"dead-letter/" + one.String(): nil,
	} {
		parsed, err := audit.ParseStream(stream)
		s.Must(err)
		page, err := s.Reads.Events(t.Context(), Operator, audit.LogQuery{EventFilter: audit.EventFilter{Stream: parsed}, Limit: 100})
		s.Must(err)
		var expected []string
		for _, i := range want {
			expected = append(expected, at[i].String())
		}
		if !slices.Equal(positions(page.Data), expected) || page.Next != nil {
			t.Errorf("%s: %v instead of %v, next %v", stream, positions(page.Data), expected, page.Next)
		}
	}
	for _, bad := range []string{"", "usage", "usage/", "tenants/x", "tenant/x", "api-key/" + strings.ToUpper(one.String()), "plan/a\x00",
		"plan/\xff"} {
		if _, err := audit.ParseStream(bad); !errors.Is(err, audit.ErrStreamInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSubjectsAreFilteredByName(t *testing.T) {
	for name, n := range map[string]int{"meterplex.usage.event.recorded.v1": 1, "meterplex.usage.event.recorded": 1,
		"meterplex.": len(events.Subjects()),
		"meterplex":  len(events.Subjects()), "meterplex.catalogue.tenant.": 2, "meterplex.catalogue.tenant": 2} {
		if got, err := audit.SubjectsOf(name); err != nil || len(got) != n {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	for _, name := range []string{"", "meterplex.usage.event.recorded.v2", "meterplex.usage.event.recorded.v", "meter", "Meterplex.", ".",
		"usage"} {
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
		RefusedAs(t, query.ErrPositionInvalid, Second(audit.ParseFrontier(bad)))
	}
}

// P1: an event whose payload PostgreSQL cannot read as text is appended with the others of its group:
// no index's expression fails.
func TestP1_NoPayloadKeepsItsNeighboursFromTheLog(t *testing.T) {
	w := NewDatabase(t)
	w.Payloads.Allow() // poison
	tenant := TenantIn(3)
	var all []events.Pending
	for _, info := range events.Subjects() {
		for _, payload := range []string{`{"eventId":"\u0000"}`, `{"feature":"\ud800","deadLetterId":"\udc00x"}`,
			`{"sourcePosition":"\u0000","validated":{"feature":"\uDBFF"}}`, `["\u0000"]`, `"\u0000"`, `{"eventId":"\\\u0000"}`,
			`{"feature":"a\\\\\udbff"}`, `{"eventId":"\\u0000\u0000"}`, `[1,"\ud800"]`, `1`, `null`} {
			all = append(all, events.Pending{EventID: NewID(), Subject: info.Subject, TenantID: tenant, DedupeKey: events.KeyEvent(NewID()),
				Actor: events.Actor{Type: "system", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(),
				Payload: json.RawMessage(payload)})
		}
	}
	w.Append(all...)
	var recorded int
	w.Must(w.Pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1`, tenant).Scan(&recorded))
	if recorded != len(all) {
		t.Errorf("%d events of %d are recorded", recorded, len(all))
	}
}
