package codec

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

func sample() events.Envelope {
	return events.Envelope{
		EventID: uuid.MustParse("01890000-0000-7000-8000-000000000001"), Subject: events.UsageRecorded,
		TenantID: uuid.MustParse("01890000-0000-7000-8000-000000000002"), Position: events.Position{Partition: 17, Number: 4711},
		Previous: 4709, Epoch: 2,
		CorrelationID: uuid.MustParse("4bf92f35-77b3-4da6-a3ce-929d0e0e4736"),
		Actor:         events.Actor{Type: "api_key", ID: "k\"ü"}, Producer: events.Producer{Service: "meterplex", Instance: "a-1",
			Commit: "abc"},
		OccurredAt: time.Date(2026, 5, 1, 1, 2, 3, 4000, time.UTC), RecordedAt: time.Date(2026, 5, 1, 1, 2, 4, 0, time.UTC),
		DedupeKey: `u/a"b\c`, Payload: json.RawMessage(`{"amount":1}`), Replay: "offline",
		Vocabulary: events.CurrentVocabulary(), Residency: events.ResidencyUnspecified,
	}
}

// wire is the value of a record, as a reader outside decodes it.
type wire struct {
	EventID       uuid.UUID       `json:"eventId"`
	EventType     string          `json:"eventType"`
	EventVersion  int             `json:"eventVersion"`
	TenantID      string          `json:"tenantId"`
	Partition     int16           `json:"partition"`
	Position      events.Position `json:"position"`
	Epoch         int32           `json:"epoch"`
	CorrelationID uuid.UUID       `json:"correlationId"`
	CausationID   uuid.UUID       `json:"causationId"`
	Actor         events.Actor    `json:"actor"`
	OccurredAt    time.Time       `json:"occurredAt"`
	RecordedAt    time.Time       `json:"recordedAt"`
	ProducedBy    events.Producer `json:"producedBy"`
	DedupeKey     string          `json:"idempotencyKey"`
	Payload       json.RawMessage `json:"payload"`
	Metadata      events.Metadata `json:"metadata"`
}

// fromRecord reads a record of a tenant as a reader outside does.
func fromRecord(r *events.Record) (events.Envelope, error) {
	var w wire
	if err := json.Unmarshal(r.Value, &w); err != nil {
		return events.Envelope{}, err
	}
	at, err := PositionOf(r)
	if err != nil {
		return events.Envelope{}, err
	}
	subject, _ := events.SubjectOf(w.EventType, w.EventVersion)
	tenant, err := uuid.Parse(w.TenantID)
	return events.Envelope{
		LogID: at.Log, EventID: w.EventID, Subject: subject, TenantID: tenant, Position: w.Position, Previous: at.Previous,
		Epoch:         w.Epoch,
		CorrelationID: w.CorrelationID, CausationID: w.CausationID, Actor: w.Actor, Producer: w.ProducedBy, OccurredAt: w.OccurredAt,
		RecordedAt: w.RecordedAt,
		DedupeKey:  w.DedupeKey, Payload: w.Payload, Replay: w.Metadata.Replay, Residency: w.Metadata.DataResidency,
	}, err
}

func TestRecordRoundTrip(t *testing.T) {
	e := sample()
	r, err := ToRecord(&e)
	must.OK(t, err)
	again, _ := ToRecord(&e)
	if !reflect.DeepEqual(r, again) {
		t.Fatal("the same event made two different records")
	}
	frame, err := ParseFrame(AppendFrame(nil, []events.Record{r, r}))
	if err != nil || len(frame) != 2 {
		t.Fatalf("frame: %d records, %v", len(frame), err)
	}
	got, err := fromRecord(&frame[1])
	must.OK(t, err)
	e.Vocabulary = nil // not part of a record
	if !reflect.DeepEqual(got, e) {
		t.Fatalf("got  %+v\nsent %+v", got, e)
	}
}

// The way of an action is a member of the actor, and absent from events without one.
func TestTheWayOfAnActionIsPartOfTheActor(t *testing.T) {
	e := sample()
	e.Replay = ""
	api, err := ToRecord(&e)
	if err != nil || strings.Contains(string(api.Value), "via") {
		t.Fatalf("%v: %s", err, api.Value)
	}
	e.Actor.Via = events.ViaConsole
	console, err := ToRecord(&e)
	if want := strings.Replace(string(api.Value), `},"occurredAt"`, `,"via":"console"},"occurredAt"`, 1); err != nil ||
		string(console.Value) != want {
		t.Fatalf("%v: %s\nwant %s", err, console.Value, want)
	}
	got, err := fromRecord(&console)
	if e.Vocabulary = nil; err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("%v: got %+v\nsent %+v", err, got, e)
	}
}

func TestWithheldRecordKeepsItsPosition(t *testing.T) {
	e := sample()
	e.Withheld = true
	r, _ := ToRecord(&e)
	if got, err := PositionOf(&r); err != nil || got != e.RecordPosition() || len(r.Value) != 0 {
		t.Fatalf("%+v %v", got, err)
	}
}

func TestEverySubjectHasTopicSchemaAndOneNumber(t *testing.T) {
	seen := map[events.Subject]bool{}
	for _, info := range events.Subjects() {
		if seen[info.Subject] {
			t.Errorf("%s: number %d is accepted", info.Name(), info.Subject)
		}
		seen[info.Subject] = true
		if info.Topic.Name() == "" {
			t.Errorf("%s has no topic", info.Name())
		}
		schema, err := events.Schema(info.Subject)
		if err != nil || !json.Valid(schema) {
			t.Errorf("%s has no valid schema: %v", info.Name(), err)
		}
	}
	for i, topic := range events.Topics() {
		if int(topic.Topic) != i+1 || topic.Topic >= events.TopicCount {
			t.Errorf("topic %s has number %d at place %d", topic.Name, topic.Topic, i)
		}
	}
}

func FuzzParseFrame(f *testing.F) {
	e := sample()
	r, _ := ToRecord(&e)
	f.Add(AppendFrame(nil, []events.Record{r}))
	f.Fuzz(func(t *testing.T, b []byte) {
		records, err := ParseFrame(b)
		if err != nil {
			return
		}
		again, err := ParseFrame(AppendFrame(nil, records))
		if err != nil || !reflect.DeepEqual(records, again) {
			t.Fatalf("an accepted frame does not survive: %v", err)
		}
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add("17-4711")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := events.ParsePosition(s); err == nil && p.String() != s {
			t.Fatalf("%q became %q", s, p)
		}
	})
}

func TestTheDocumentListsEverySubject(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/log-events.md")
	must.OK(t, err)
	for _, i := range events.Subjects() {
		row := fmt.Sprintf("| %d | `%s` | `%s` | %s | %s |", i.Subject, i.Name(), i.Topic.Name(), i.Retention, i.Trigger)
		if !strings.Contains(string(doc), row) {
			t.Errorf("docs/reference/log-events.md misses: %s", row)
		}
	}
}
