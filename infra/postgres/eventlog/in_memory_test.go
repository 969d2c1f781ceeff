package eventlog

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

const fence = 7 // of the lease of a relay

// The events that consumers of this process and the relay get from memory are those that the log has, in its order, once each, and stay so
// when the submitter uses its memory again.
func TestP2_EventsInMemoryAreThoseOfTheLog(t *testing.T) {
	cache := recent.New()
	relay := cache.Relay()
	var all []events.Subject
	for _, s := range events.Subjects() {
		all = append(all, s.Subject)
	}
	reader := cache.Reader(0, all)
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate), func(c *Config) {
		c.Recent, c.Written = cache, nil // payloads that no schema allows are held, too
	})
	tenant := uuid.Must(uuid.NewV7())
	p, head := follow(t, l, relay, tenant)
	added, _ := payloadsOf(tenant)
	for _, s := range events.Subjects() {
		if s.Topic != 0 {
			added = append(added, events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: s.Subject, TenantID: tenant,
				DedupeKey: fmt.Sprint("s/", s.Subject),
				Residency: "eu-made-1", OccurredAt: added[0].OccurredAt, Payload: []byte(`{"a": 1}`)})
		}
	}
	appended := appendBoth(t, l, pool, tenant, added)
	cache.Put(pointers(appended))
	stored, err := l.Read(t.Context(), p, head, 1<<40, 10_000)
	if err != nil || len(stored) < 10+len(added) {
		t.Fatalf("the log has %d events, want at least %d: %v", len(stored), 10+len(added), err)
	}
	end := appended[len(appended)-1]
	remembered, _ := reader.Stretch(nil, events.Stretch{Partition: p, After: head, UpTo: end.Position.Number}, end.Epoch, 10_000)
	var taken []events.Envelope
	for _, e := range relay.Take(p, fence, head, 1<<40, 1<<40) {
		taken = append(taken, *e)
	}
	for name, got := range map[string][]events.Envelope{"remembered": remembered, "taken by the relay": taken} {
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

// follow follows the partition of a tenant from the head of the log on, and returns the head.
func follow(t *testing.T, l *Log, relay *recent.Reader, tenant uuid.UUID) (partition int16, head int64) {
	t.Helper()
	var epoch int32
	partition = events.PartitionOf(tenant)
	must.OK(t, l.aside.QueryRow(t.Context(), `SELECT position, epoch FROM log_heads WHERE partition = $1`, partition).Scan(&head, &epoch))
	relay.Follow(partition, fence, epoch, head)
	return partition, head
}

// appendBoth submits usage, whose memory the caller then uses again, and appends a known event and follow-ups, which alone it returns.
func appendBoth(t *testing.T, l *Log, pool *pgxpool.Pool, tenant uuid.UUID, added []events.Pending) []events.Envelope {
	t.Helper()
	for i := range 5 {
		a := usageEvent(tenant, fmt.Sprint("a", i), 1)
		a.CorrelationID, a.CausationID, a.Replay = uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7()), "offline"
		// the last one is a conflict
		batch := []metering.Submitted{a, usageEvent(tenant, fmt.Sprint("b", i), 2), usageEvent(tenant, "a0", 3)}
		submit(t, l, tenant, batch...)
		for j := range batch {
			clear(batch[j].Payload)
			clear(batch[j].Payload)
		}
	}
	var appended []events.Envelope
	within := func(tx pgx.Tx) (err error) {
		appended, err = l.AppendEventsTx(t.Context(), tx, append([]events.Pending{usageEvent(tenant, "a0", 1).Pending}, added...))
		return err
	}
	if err := pgx.BeginFunc(context.Background(), pool, within); err != nil || len(appended) != len(added) {
		t.Fatalf("appended %d events, want the %d new ones: %v", len(appended), len(added), err)
	}
	return appended
}

func TestP1_MemoryHoldsNoEventOfACommitWithoutAnswer(t *testing.T) {
	c, proxied := localtest.NewCutter(t, localtest.Migrated(t, postgres.Migrate))
	cache := recent.New()
	relay := cache.Relay()
	reader := cache.Reader(0, []events.Subject{events.UsageRecorded})
	l, pool := openLogAt(t, proxied, func(c *Config) { c.Recent = cache })
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "warm", 1)) // origins and statements are known
	p, head := follow(t, l, relay, tenant)
	c.Answer.Store(1)
	before := c.Reached.Load()
	if outcomes := submit(t, l, tenant, usageEvent(tenant, "a", 1)); outcomes[0].Status != metering.Appended ||
		outcomes[0].Position.Number != head+1 {
		t.Fatalf("appended as %v", outcomes)
	}
	if c.Reached.Load() == before {
		t.Fatal("no COMMIT was cut")
	}
	submit(t, l, tenant, usageEvent(tenant, "b", 1))
	if got := relay.Take(p, fence, head, head+1, 1<<20); len(got) != 0 {
		t.Errorf("the relay takes %d events of a COMMIT without an answer", len(got))
	}
	if got := relay.Take(p, fence, head+1, head+2, 1<<20); len(got) != 1 {
		t.Errorf("the relay takes %d events of the next COMMIT", len(got))
	}
	var epoch int32
	must.OK(t, pool.QueryRow(t.Context(), `SELECT epoch FROM log_heads WHERE partition = $1`, p).Scan(&epoch))
	for i, want := range []bool{true, false, true} {
		after := head - 1 + int64(i)
		if got, ok := reader.Stretch(nil, events.Stretch{Partition: p, After: after, UpTo: after + 1}, epoch, 10); ok != want {
			t.Errorf("the event behind %d is in memory: %t, %+v", after, ok, got)
		}
	}
}
