package eventlog

import (
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

// readBoth reads a stretch of a partition from memory and from the database.
func readBoth(t *testing.T, l *Log, pool *pgxpool.Pool, r *RecentReader, s events.Stretch, epoch int32) (held, stored []events.Envelope, ok bool) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		stored, err = l.ReadStretchesTx(t.Context(), tx, []events.Stretch{s}, r.wants, 10_000)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	held, ok = r.Stretch(nil, s, epoch, 10_000)
	return held, stored, ok
}

// A consumer of the log folds the same events, whether they come from memory or from the database.
func TestP4_EventsInMemoryAreThoseOfTheLog(t *testing.T) {
	recent, tail := NewRecent(), NewTail()
	var all []events.Subject
	for _, s := range events.Subjects() {
		all = append(all, s.Subject)
	}
	reader := recent.Reader(all)
	l, pool := openLogAt(t, localtest.Migrated(t, postgres.Migrate), func(c *Config) {
		c.Recent, c.Tail, c.Written = recent, tail, nil
	})
	tenant := uuid.Must(uuid.NewV7())
	p, head := follow(t, l, tail, tenant)
	added := payloadsOf(tenant)
	appended := appendBoth(t, l, pool, tenant, added)
	Newest{Tail: tail, Recent: recent}.Put(held(appended...))
	end := appended[len(appended)-1]
	inMemory, stored, ok := readBoth(t, l, pool, reader, events.Stretch{Partition: p, After: head, UpTo: end.Position.Number}, end.Epoch)
	if !ok || len(inMemory) != len(stored) || len(inMemory) < 10+len(added) {
		t.Fatalf("%d events are in memory (%t), %d in the log, want at least %d", len(inMemory), ok, len(stored), 10+len(added))
	}
	for i := range inMemory {
		for _, e := range []*events.Envelope{&inMemory[i], &stored[i]} { // of one location
			e.OccurredAt, e.RecordedAt = e.OccurredAt.UTC(), e.RecordedAt.UTC()
		}
		if !reflect.DeepEqual(inMemory[i], stored[i]) {
			t.Errorf("in memory:\n%+v %s\nin the log:\n%+v %s", inMemory[i], inMemory[i].Payload, stored[i], stored[i].Payload)
		}
	}
	if taken := tail.Take(p, fence, head, 1<<40, 1<<40); len(taken) != len(stored) {
		t.Errorf("the relay has %d of %d events", len(taken), len(stored))
	}
}
