package metering

import (
	"context"
	"crypto/sha256"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// fakeLog is a fake log with the histories that a test sets.
type fakeLog struct {
	cached, fresh domain.TenantHistory
	known         map[string]string // dedupe key: hash
	asked         int               // number of reads of the tables
	got           []Submitted
}

func newID(time.Time) uuid.UUID { return uuid.New() }

func (s *fakeLog) Cached(context.Context, uuid.UUID) (domain.TenantHistory, error) {
	return s.cached, nil
}

func (s *fakeLog) Fresh(context.Context, uuid.UUID) (domain.TenantHistory, error) {
	s.asked++
	return s.fresh, nil
}

func (s *fakeLog) Admit(uuid.UUID) error { return nil }

func (s *fakeLog) Submit(_ context.Context, _ uuid.UUID, batch []Submitted) ([]Outcome, error) {
	s.got = batch
	outcomes := make([]Outcome, len(batch))
	for i, b := range batch {
		hash, ok := s.known[b.DedupeKey]
		switch {
		case ok && hash == string(codec.PayloadHash(&b.Pending)):
			outcomes[i].Status = Duplicate
		case ok:
			outcomes[i].Status = Conflict
		case b.Refusal != nil:
			outcomes[i] = Outcome{Status: Denied, Refusal: b.Refusal}
		default:
			outcomes[i].Status = Appended
		}
	}
	return outcomes, nil
}

func active() domain.TenantHistory {
	limit := domain.Grant{Entitlement: domain.Entitlement{Feature: "api_calls", ResetPeriod: domain.ResetMonthly},
		Type: domain.FeatureQuota}
	return domain.TenantHistory{History: domain.History{{FromPosition: 1,
		Subscription: &domain.Subscription{Status: domain.SubscriptionActive, Entitlements: []domain.Grant{limit}}}}}
}

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func ingest(t *testing.T, s *fakeLog, scopes []string, body string) []EventVerdict {
	t.Helper()
	items, err := intake.DecodeBatch([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	c := &IngestUsage{Log: s, Histories: s, Now: func() time.Time {
		return noon
	}, Window: domain.TimestampWindow{Ahead: 5 * time.Minute, Behind: 7 * 24 * time.Hour}, NewID: newID}
	verdicts, err := c.Do(t.Context(), commands.Caller{TenantID: uuid.New(), Scopes: scopes}, items)
	if err != nil {
		t.Fatal(err)
	}
	return verdicts
}

// late returns a history of which May is closed, and late usage refused or adjusted.
func late(policy string) domain.TenantHistory {
	h := active()
	h.Changes = []domain.PeriodChange{{Position: 5, PeriodKey: "2026-05", Snapshot: 1, Change: domain.PeriodCloseRequested}}
	h.Policies = []domain.LatePolicy{{FromPosition: 6, LateUsage: policy}}
	return h
}

// Late usage is refused by the tables, not by a cached history, which may be older than a reopening or another policy.
func TestP8_LateUsageIsRefusedByTheConfirmedHistory(t *testing.T) {
	refused, adjusted := late(events.LateUsageReject), late(events.LateUsageAdjust)
	for name, c := range map[string]struct {
		cached, fresh domain.TenantHistory
		at            string
		asked         int
		code          string
	}{
		"open":              {active(), refused, "2026-05-04T12:00:00Z", 0, ""},
		"closed":            {refused, refused, "2026-05-04T12:00:00Z", 1, "period_closed"},
		"reopened":          {refused, active(), "2026-05-04T12:00:00Z", 1, ""},
		"adjusted":          {adjusted, refused, "2026-05-04T12:00:00Z", 0, ""},
		"adjusted by now":   {refused, adjusted, "2026-05-04T12:00:00Z", 1, ""},
		"of another period": {refused, refused, "2026-04-30T23:59:59Z", 0, ""},
	} {
		s := &fakeLog{cached: c.cached, fresh: c.fresh}
		v := ingest(t, s, nil, oneEvent("a", "api_calls", c.at))
		if v[0].Code != c.code || s.asked != c.asked || (s.got[0].Refusal != nil) != (c.code != "") {
			t.Errorf("%s: %+v after %d looks", name, v[0], s.asked)
		}
		if c.code != "" && v[0].Pointer != "/events/0/timestamp" {
			t.Errorf("%s: the refusal points to %q", name, v[0].Pointer)
		}
	}
	correction := `{"events":[{"eventId":"c","feature":"api_calls","amount":1,"timestamp":"2026-05-04T12:00:00Z","type":"correction",` +
		`"correctionRef":"a"}]}`
	if v := ingest(t, &fakeLog{cached: refused, fresh: refused}, nil, correction); v[0].Status != StatusAccepted {
		t.Errorf("a late correction: %+v", v[0])
	}
	known := oneEvent("a", "api_calls", "2026-05-04T12:00:00Z")
	if v := ingest(t, &fakeLog{cached: refused, fresh: refused, known: map[string]string{"u/a": hashOf(t, known)}}, nil,
		known); v[0].Status != StatusDuplicate {
		t.Errorf("a repetition of usage from before the close: %+v", v[0])
	}
}

func oneEvent(id, feature, at string) string {
	return `{"events":[{"eventId":"` + id + `","feature":"` + feature + `","amount":1,"timestamp":"` + at + `"}]}`
}

func hashOf(t *testing.T, body string) string {
	t.Helper()
	items, _ := intake.DecodeBatch([]byte(body))
	sum := sha256.Sum256(items[0].Event.Payload())
	return string(append([]byte{strictjson.Version}, sum[:]...))
}

func TestP2_DedupeComesBeforePolicy(t *testing.T) {
	old := oneEvent("a", "api_calls", "2020-01-01T00:00:00Z")
	s := &fakeLog{known: map[string]string{"u/a": hashOf(t, old)}}
	if v := ingest(t, s, nil, old); v[0].Status != StatusDuplicate {
		t.Errorf("too old, no subscription, but known: %+v", v[0])
	}
	if v := ingest(t, s, nil, oneEvent("a", "api_calls", "2020-01-02T00:00:00Z")); v[0].Status != StatusConflict ||
		v[0].Code != "payload_conflict" {
		t.Errorf("the same with another payload: %+v", v[0])
	}
	if v := ingest(t, s, nil, oneEvent("b", "api_calls", "2020-01-01T00:00:00Z")); v[0].Code != "timestamp_too_old" {
		t.Errorf("too old and not known: %+v", v[0])
	}
	if s.got[0].Refusal == nil {
		t.Error("what policy refuses was handed to the log to be stored")
	}
}

func TestIngestConfirmsOnlyCachedRejections(t *testing.T) {
	now := "2026-05-04T12:00:00Z"
	s := &fakeLog{cached: active()}
	if v := ingest(t, s, nil, oneEvent("a", "api_calls", now)); v[0].Status != StatusAccepted || s.asked != 0 {
		t.Errorf("a cached yes: %+v after %d looks at the tables", v[0], s.asked)
	}
	s = &fakeLog{fresh: active()}
	if v := ingest(t, s, nil, oneEvent("a", "api_calls", now)); v[0].Status != StatusAccepted || s.asked != 1 {
		t.Errorf("a cached no that is wrong by now: %+v after %d looks", v[0], s.asked)
	}
	for feature, code := range map[string]string{"api_calls": "no_active_subscription", "other": "no_active_subscription"} {
		if v := ingest(t, &fakeLog{}, nil, oneEvent("a", feature, now)); v[0].Code != code {
			t.Errorf("%s: %+v", feature, v[0])
		}
	}
	if v := ingest(t, &fakeLog{cached: active(), fresh: active()}, nil, oneEvent("a", "other", now)); v[0].Code != "feature_not_found" ||
		v[0].Pointer != "/events/0/feature" {
		t.Errorf("a feature that is not granted: %+v", v[0])
	}
}

func TestTheWindowIsOpenBackwardsForBackfill(t *testing.T) {
	body := oneEvent("a", "api_calls", "2020-01-01T00:00:00Z")
	if v := ingest(t, &fakeLog{cached: active()}, []string{commands.ScopeUsageBackfill}, body); v[0].Status != StatusAccepted {
		t.Errorf("with usage:backfill: %+v", v[0])
	}
	for at, code := range map[string]string{
		"2026-05-04T12:05:00Z": "", "2026-05-04T12:05:00.000001Z": "timestamp_in_future",
		"2026-04-27T12:00:00Z": "", "2026-04-27T11:59:59.999999Z": "timestamp_too_old",
	} {
		if v := ingest(t, &fakeLog{cached: active()}, nil, oneEvent("a", "api_calls", at)); v[0].Code != code {
			t.Errorf("%s: %+v", at, v[0])
		}
	}
}

func TestACloudEventsTraceIsItsCorrelation(t *testing.T) {
	items, err := intake.DecodeCloudEvent(
		[]byte(`{"specversion":"1.0","id":"a","source":"/s","type":"api_calls","time":"2026-05-04T12:00:00Z",
 "traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","data":{"amount":1}}`))
	if err != nil || items[0].Err != nil {
		t.Fatal(err, items)
	}
	s := &fakeLog{cached: active()}
	c := &IngestUsage{Log: s, Histories: s, Now: func() time.Time {
		return noon
	}, Window: domain.TimestampWindow{Ahead: time.Minute, Behind: time.Hour}, NewID: newID}
	if _, err := c.Do(t.Context(), commands.Caller{CorrelationID: uuid.New()}, items); err != nil {
		t.Fatal(err)
	}
	if got := s.got[0].CorrelationID.String(); got != "4bf92f35-77b3-4da6-a3ce-929d0e0e4736" {
		t.Fatalf("correlation %s", got)
	}
	if s.got[0].Subject != events.UsageRecorded || s.got[0].Counts.Accepted != 1 {
		t.Fatalf("%+v", s.got[0])
	}
}

// unansweredLog is a log that does not respond, but continues to work on the batch.
type unansweredLog struct {
	*fakeLog
	held [][]Submitted
}

func (s *unansweredLog) Submit(_ context.Context, _ uuid.UUID, batch []Submitted) ([]Outcome, error) {
	s.held = append(s.held, batch)
	return nil, commands.ErrUnavailable
}

// The log may still be working on a batch with an unknown outcome: no other batch may
// reuse its memory.
func TestP2_MemoryOfAnUnansweredBatchIsNotReused(t *testing.T) {
	s := &unansweredLog{fakeLog: &fakeLog{cached: active(), fresh: active()}}
	c := &IngestUsage{Log: s, Histories: s, Now: func() time.Time {
		return noon
	}, Window: domain.TimestampWindow{Ahead: time.Minute, Behind: time.Hour}, NewID: newID}
	batch := func(name string) []intake.BatchItem {
		items := make([]intake.BatchItem, manyEvents)
		for i := range items {
			id := name + strconv.Itoa(i)
			items[i] = intake.BatchItem{Index: i, EventID: id, Event: &domain.UsageEvent{EventID: id, Feature: "api_calls", Amount: 1,
				Timestamp: noon, Body: []byte(id)}}
		}
		return items
	}
	for _, name := range []string{"a", "b", "c"} {
		if _, err := c.Do(t.Context(), commands.Caller{TenantID: uuid.New()}, batch(name)); !errors.Is(err, commands.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	for n, name := range []string{"a", "b", "c"} {
		for i := range s.held[n] {
			if got, want := s.held[n][i].DedupeKey, events.KeyUsage(name+strconv.Itoa(i)); got != want {
				t.Fatalf("%s became %s", want, got)
			}
		}
	}
}

// A batch reuses the memory of the one before, with or without an inbox, and none of
// the old content is left.
func TestP2_EventsOfABatchAreItsOwn(t *testing.T) {
	s := &fakeLog{cached: active(), fresh: active()}
	c := &IngestUsage{Log: s, Histories: s, Now: func() time.Time {
		return noon
	}, Window: domain.TimestampWindow{Ahead: time.Minute, Behind: time.Hour}, NewID: newID}
	for n, b := range []struct {
		size              int
		refused, messages bool
	}{
		{3 * manyEvents, false, false}, {2 * manyEvents, true, false}, {2 * manyEvents, true, true}, {2*manyEvents - 1, false, false},
		{manyEvents, true, false},
		{3, true, false}, {4 * manyEvents, false, true}, {4*manyEvents - 1, false, false}, {4*manyEvents - 2, true, true},
		{4*manyEvents - 3, false, true},
	} {
		by := commands.Caller{TenantID: uuid.New()}
		items := make([]intake.BatchItem, b.size)
		for i := range items {
			id := strconv.Itoa(n) + "/" + strconv.Itoa(i)
			items[i] = intake.BatchItem{Index: i, EventID: id, Event: &domain.UsageEvent{EventID: id, Feature: "api_calls", Amount: 1,
				Timestamp: noon, Body: []byte(id)}}
			if b.refused {
				items[i].Event.Feature = "unknown" // refused by policy
			}
		}
		var in *inbox
		if b.messages {
			in = &inbox{pending: func(i int, _ *domain.Error) events.Pending {
				return events.Pending{TenantID: by.TenantID, Subject: events.UsageRefused, DedupeKey: "i/" + items[i].EventID}
			}}
		}
		if _, err := c.do(t.Context(), by, items, in, false); err != nil || len(s.got) != b.size {
			t.Fatal(len(s.got), err)
		}
		for i := range s.got {
			got, id, box := &s.got[i], items[i].EventID, ""
			if b.messages {
				box = "i/" + id
			}
			if got.TenantID != by.TenantID || got.DedupeKey != events.KeyUsage(id) || string(got.Payload) != id ||
				(got.Refusal != nil) != b.refused || got.Inbox != box || (got.Refuse != nil) != b.messages ||
				b.messages && got.Refuse(domain.Refuse("c", "", "r")).DedupeKey != box ||
				got.EventID == uuid.Nil || got.OccurredAt != noon {
				t.Fatalf("batch %d, event %d is stored as %+v", n, i, got)
			}
		}
	}
}
