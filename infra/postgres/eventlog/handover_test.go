package eventlog

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

// The events that consumers of this process and the relay get from memory are those that the log has, in its order, once each, and stay so
// when the submitter uses its memory again.
func TestP2_EventsInMemoryAreThoseOfTheLog(t *testing.T) {
	var mu sync.Mutex
	var handed []events.Envelope
	recent, tail := NewRecent(), NewTail()
	var all []events.Subject
	for _, s := range events.Subjects() {
		all = append(all, s.Subject)
	}
	reader := recent.Reader(all)
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate), func(c *Config) {
		c.Tail, c.Recent, c.Written = tail, recent, nil // payloads that no schema allows are handed over, too
		c.Handed = func(_ events.Topic, at events.Place, _ time.Time, event func() *events.Envelope) bool {
			mu.Lock()
			defer mu.Unlock()
			e := event()
			if e.Place() != at {
				t.Errorf("offered at %+v, the event is at %+v", at, e.Place())
			}
			handed = append(handed, *e)
			return true
		}
	})
	tenant := uuid.Must(uuid.NewV7())
	p, head := follow(t, l, tail, tenant)
	added := payloadsOf(tenant)
	for _, s := range events.Subjects() {
		if s.Topic != 0 {
			added = append(added, events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: s.Subject, TenantID: tenant, DedupeKey: fmt.Sprint("s/", s.Subject),
				Residency: "eu-tail-1", OccurredAt: added[0].OccurredAt, Payload: []byte(`{"a": 1}`)})
		}
	}
	appended := appendBoth(t, l, pool, tenant, added)
	Newest{Tail: tail, Recent: recent}.Put(held(appended...))
	stored, err := l.Read(t.Context(), p, head, 1<<40, 10_000)
	if err != nil || len(stored) < 10+len(added) {
		t.Fatalf("the log has %d events, want at least %d: %v", len(stored), 10+len(added), err)
	}
	end := appended[len(appended)-1]
	remembered, _ := reader.Stretch(nil, events.Stretch{Partition: p, After: head, UpTo: end.Position.Number}, end.Epoch, 10_000)
	var taken []events.Envelope
	for _, e := range tail.Take(p, fence, head, 1<<40, 1<<40) {
		taken = append(taken, *e)
	}
	for name, got := range map[string][]events.Envelope{"handed over": append(handed, appended...), "remembered": remembered, "in the tail": taken} {
		if len(got) != len(stored) {
			t.Fatalf("%d events are %s, %d in the log", len(got), name, len(stored))
		}
		for i, e := range got {
			want := stored[i]
			for _, e := range []*events.Envelope{&e, &want} { // of one location
				e.OccurredAt, e.RecordedAt = e.OccurredAt.UTC(), e.RecordedAt.UTC()
			}
			if !reflect.DeepEqual(e, want) {
				t.Errorf("%s:\n%+v %s\nin the log:\n%+v %s", name, e, e.Payload, want, want.Payload)
			}
		}
	}
}
