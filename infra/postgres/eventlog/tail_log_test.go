package eventlog

import (
	"context"
	"fmt"

	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"

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

// appendBoth submits usage, whose memory the caller then uses again, and appends a known event and follow-ups, which alone it returns.
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
