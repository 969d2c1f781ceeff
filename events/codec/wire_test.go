package codec

import (
	"encoding/json"
	"errors"
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
		TenantID: uuid.MustParse("01890000-0000-7000-8000-000000000002"), Position: events.Position{Partition: 17, Number: 4711}, Previous: 4709, Epoch: 2,
		CorrelationID: uuid.MustParse("4bf92f35-77b3-4da6-a3ce-929d0e0e4736"),
		Actor:         events.Actor{Type: "api_key", ID: "k\"ü"}, Producer: events.Producer{Service: "meterplex", Instance: "a-1", Commit: "abc"},
		OccurredAt: time.Date(2026, 5, 1, 1, 2, 3, 4000, time.UTC), RecordedAt: time.Date(2026, 5, 1, 1, 2, 4, 0, time.UTC),
		DedupeKey: `u/a"b\c`, Payload: json.RawMessage(`{"amount":1}`), Replay: "offline",
		Vocabulary: events.CurrentVocabulary(), Residency: events.ResidencyUnspecified,
	}
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
	got, err := FromRecord(&frame[1])
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
	if want := strings.Replace(string(api.Value), `},"occurredAt"`, `,"via":"console"},"occurredAt"`, 1); err != nil || string(console.Value) != want {
		t.Fatalf("%v: %s\nwant %s", err, console.Value, want)
	}
	got, err := FromRecord(&console)
	if e.Vocabulary = nil; err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("%v: got %+v\nsent %+v", err, got, e)
	}
}

func TestFromRecordRefusesInconsistentRecords(t *testing.T) {
	e := sample()
	for name, spoil := range map[string]func(*events.Record){
		"cut value":       func(r *events.Record) { r.Value = r.Value[:40] },
		"other partition": func(r *events.Record) { r.Partition = 3 },
		"other topic":     func(r *events.Record) { r.Topic = events.TopicUsageValidated },
		"no headers":      func(r *events.Record) { r.Headers = nil },
		"other position":  func(r *events.Record) { r.Headers[1].Value = []byte("17-4712") },
		"other epoch":     func(r *events.Record) { r.Headers[3].Value = []byte("9") },
	} {
		r, _ := ToRecord(&e)
		spoil(&r)
		if _, err := FromRecord(&r); !errors.Is(err, ErrUndecodable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWithheldRecordKeepsItsPlace(t *testing.T) {
	e := sample()
	e.Withheld = true
	r, _ := ToRecord(&e)
	got, err := FromRecord(&r)
	if err != nil || !got.Withheld || got.Position != e.Position || got.Previous != e.Previous || len(r.Value) != 0 {
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
	doc, err := os.ReadFile("../../docs/events.md")
	must.OK(t, err)
	for _, i := range events.Subjects() {
		row := fmt.Sprintf("| %d | `%s` | `%s` | %s | %s |", i.Subject, i.Name(), i.Topic.Name(), i.Retention, i.Trigger)
		if !strings.Contains(string(doc), row) {
			t.Errorf("docs/events.md misses: %s", row)
		}
	}
}
