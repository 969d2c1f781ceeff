package eventlog

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

// follow follows the partition of a tenant from the head of the log on, and returns the head.
func follow(t *testing.T, l *Log, tail *Tail, tenant uuid.UUID) (partition int16, head int64) {
	t.Helper()
	var epoch int32
	partition = events.PartitionOf(tenant)
	if err := l.aside.QueryRow(t.Context(), `SELECT position, epoch FROM log_heads WHERE partition = $1`, partition).Scan(&head, &epoch); err != nil {
		t.Fatal(err)
	}
	tail.Follow(partition, fence, epoch, head)
	return partition, head
}

// appendBoth submits usage, whose memory the caller then uses again, and appends follow-ups, which it returns.
func appendBoth(t *testing.T, l *Log, pool *pgxpool.Pool, tenant uuid.UUID, added []events.Pending) []events.Envelope {
	t.Helper()
	for i := range 5 {
		a := usageEvent(tenant, fmt.Sprint("a", i), 1)
		a.CorrelationID, a.CausationID, a.Replay = uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7()), "offline"
		batch := []commands.Submitted{a, usageEvent(tenant, fmt.Sprint("b", i), 2), usageEvent(tenant, "a0", 3)} // the last one is a conflict
		submit(t, l, tenant, batch...)
		for j := range batch {
			clear(batch[j].Body)
			clear(batch[j].Payload)
		}
	}
	var appended []events.Envelope
	within := func(tx pgx.Tx) (err error) {
		appended, err = l.AppendEventsTx(t.Context(), tx, added)
		return err
	}
	if err := pgx.BeginFunc(context.Background(), pool, within); err != nil {
		t.Fatal(err)
	}
	return appended
}

// The relay publishes the same bytes, whether an event comes from the tail or from the database.
func TestP2_EventsOfTheTailMakeTheRecordsOfTheLog(t *testing.T) {
	tail := NewTail()
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate), func(c *Config) {
		c.Tail, c.Written = tail, nil // payloads that no schema allows are published, too
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
	tail.Put(held(appendBoth(t, l, pool, tenant, added)...))
	stored, err := l.Read(t.Context(), p, head, 1<<40, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	got := tail.Take(p, fence, head, 1<<40, 1<<40)
	if len(got) != len(stored) || len(got) < 10+len(added) {
		t.Fatalf("the tail has %d events, the log %d, want at least %d", len(got), len(stored), 10+len(added))
	}
	for i := range got {
		a, err := codec.ToRecord(got[i])
		if err != nil {
			t.Fatal(err)
		}
		if b, err := codec.ToRecord(&stored[i]); err != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("of the tail:\n%+v %s\nof the log (%v):\n%+v %s", a, a.Value, err, b, b.Value)
		}
	}
}

func TestP1_MemoryHoldsNoEventOfACommitWithoutAnswer(t *testing.T) {
	c, proxied := localtest.NewCutter(t, localtest.Migrated(t, postgres.Migrate))
	tail, recent := NewTail(), NewRecent()
	reader := recent.Reader([]events.Subject{events.UsageRecorded})
	l, pool := openLogAt(t, proxied, func(c *Config) { c.Tail, c.Recent = tail, recent })
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "warm", 1)) // origins and statements are known
	p, head := follow(t, l, tail, tenant)
	c.Answer.Store(1)
	before := c.Reached.Load()
	if places := submit(t, l, tenant, usageEvent(tenant, "a", 1)); places[0].Status != commands.Appended || places[0].Position.Number != head+1 {
		t.Fatalf("appended as %v", places)
	}
	if c.Reached.Load() == before {
		t.Fatal("no COMMIT was cut")
	}
	submit(t, l, tenant, usageEvent(tenant, "b", 1))
	if got := tail.Take(p, fence, head, head+1, 1<<20); len(got) != 0 {
		t.Errorf("the tail has %d events of a COMMIT without an answer", len(got))
	}
	if got := tail.Take(p, fence, head+1, head+2, 1<<20); len(got) != 1 {
		t.Errorf("the tail has %d events of the next COMMIT", len(got))
	}
	var epoch int32
	if err := pool.QueryRow(t.Context(), `SELECT epoch FROM log_heads WHERE partition = $1`, p).Scan(&epoch); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, true} {
		after := head - 1 + int64(i)
		if got, ok := reader.Stretch(nil, events.Stretch{Partition: p, After: after, UpTo: after + 1}, epoch, 10); ok != want {
			t.Errorf("the event behind %d is in memory: %t, %+v", after, ok, got)
		}
	}
}

func TestP2_TheTailsOfTwoProcessesHaveTheirOwnEventsOnly(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	tails := [2]*Tail{NewTail(), NewTail()}
	var logs [2]*Log
	tenant := uuid.Must(uuid.NewV7())
	var p int16
	var head int64
	for i, tail := range tails {
		logs[i], _ = openLogAt(t, url, func(c *Config) { c.Tail = tail })
	}
	for i, tail := range tails {
		p, head = follow(t, logs[i], tail, tenant)
	}
	for i := range 8 { // two events of each in turn
		submit(t, logs[i/2%2], tenant, usageEvent(tenant, fmt.Sprint("a", i), 1))
	}
	for i, tail := range tails {
		for at := int64(0); at < 8; at += 2 {
			want := 0
			if int(at/2)%2 == i {
				want = 2
			}
			got := tail.Take(p, fence, head+at, head+at+2, 1<<20)
			if len(got) != want {
				t.Errorf("process %d has %d events from %d on, want %d", i, len(got), head+at, want)
			}
		}
	}
}
