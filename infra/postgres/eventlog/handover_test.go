package eventlog

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

// The events that consumers of this process get ahead of the pipe are those that the log has, in its order,
// once each, and stay so when the submitter uses its memory again.
func TestP2_HandedEventsAreThoseOfTheLog(t *testing.T) {
	var mu sync.Mutex
	var handed []events.Envelope
	offer := func(_ events.Topic, at events.Place, _ time.Time, event func() *events.Envelope) bool {
		mu.Lock()
		defer mu.Unlock()
		e := event()
		if e.Place() != at {
			t.Errorf("offered at %+v, the event is at %+v", at, e.Place())
		}
		handed = append(handed, *e)
		return true
	}
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate), func(c *Config) {
		c.Handed, c.Written = offer, nil // payloads that no schema allows are handed over, too
	})
	tenant := uuid.Must(uuid.NewV7())
	p := events.PartitionOf(tenant)
	for i := range 5 {
		batch := []commands.Submitted{usageEvent(tenant, fmt.Sprint("a", i), 1), usageEvent(tenant, fmt.Sprint("b", i), 2), usageEvent(tenant, "a0", 1)}
		submit(t, l, tenant, batch...)
		for j := range batch {
			clear(batch[j].Body)
			clear(batch[j].Payload)
		}
	}
	var appended []events.Envelope
	old, added := usageEvent(tenant, "a0", 1).Pending, append(payloadsOf(tenant), usageEvent(tenant, "c", 3).Pending)
	within := func(tx pgx.Tx) (err error) {
		appended, err = l.AppendEventsTx(t.Context(), tx, append([]events.Pending{old}, added...))
		return err
	}
	if err := pgx.BeginFunc(context.Background(), pool, within); err != nil || len(appended) != len(added) {
		t.Fatalf("appended %d events, want the %d new ones: %v", len(appended), len(added), err)
	}
	stored, err := l.Read(t.Context(), p, 0, 1<<40, 1000)
	if err != nil {
		t.Fatal(err)
	}
	got := append(handed, appended...)
	if len(got) != len(stored) || len(got) != 10+len(added) {
		t.Fatalf("%d events were handed over, the log has %d, want %d", len(got), len(stored), 10+len(added))
	}
	for i := range got {
		a, b := got[i], stored[i]
		same := a.OccurredAt.Equal(b.OccurredAt) && a.RecordedAt.Equal(b.RecordedAt)
		a.OccurredAt, a.RecordedAt, b.OccurredAt, b.RecordedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		if !same || !reflect.DeepEqual(a, b) {
			t.Errorf("handed over:\n%+v %s\nstored:\n%+v %s", got[i], got[i].Payload, stored[i], stored[i].Payload)
		}
	}
}
