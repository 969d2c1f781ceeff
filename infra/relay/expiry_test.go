package relay

import (
	"context"
	"errors"

	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay/cursors"
	"github.com/meterplex/meterplex/internal/must"
)

// kept is the retention of the tests' topics: notifications do not expire.
func kept(context.Context) (map[events.Topic]time.Duration, error) {
	return map[events.Topic]time.Duration{events.TopicUsageRaw: 24 * time.Hour, events.TopicUsageValidated: 72 * time.Hour}, nil
}

// expiryFixture holds a database with publications, and counts those that its Expiry deletes.
type expiryFixture struct {
	*testing.T
	pool    *pgxpool.Pool
	deleted atomic.Int64
}

func newExpiryFixture(t *testing.T) *expiryFixture {
	_, pool := migrated(t, false)
	return &expiryFixture{T: t, pool: pool}
}

func (f *expiryFixture) expiry(batch int) *Expiry {
	return &Expiry{Pool: f.pool, Retention: kept, Deleted: func(n int64) { f.deleted.Add(n) }, Batch: batch}
}

// publish inserts publications of one event each from a position on, at an age of the given hours.
func (f *expiryFixture) publish(partition int16, topic events.Topic, from, to int64, hours float64) {
	f.Helper()
	_, err := f.pool.Exec(f.Context(), `INSERT INTO outbox_publications (partition, topic, from_position, to_position, base_offset,
		published_at)
 SELECT $1, $2, n, n, n, now() - make_interval(secs => $5 * 3600) FROM generate_series($3::bigint, $4) n`, partition, topic, from, to,
		hours)
	must.OK(f, err)
}

// left returns the number of publications, and their positions as partition/topic/position.
func (f *expiryFixture) left() (n int64, positions string) {
	f.Helper()
	err := f.pool.QueryRow(context.Background(),
		`SELECT count(*), coalesce(string_agg(format('%s/%s/%s', partition, topic, from_position), ' '
 ORDER BY partition, topic, from_position), '') FROM outbox_publications`).Scan(&n, &positions)
	must.OK(f, err)
	return n, positions
}

func (f *expiryFixture) round(x *Expiry) {
	f.Helper()
	must.OK(f, x.Look(f.Context()))
}

// Publications beyond their own topic's retention go, all others stay.
func TestPublicationsAreKeptForTheRetentionOfTheirTopic(t *testing.T) {
	f := newExpiryFixture(t)
	f.publish(3, events.TopicUsageRaw, 1, 5, 26)
	f.publish(3, events.TopicUsageRaw, 6, 6, 24.5) // within the margin
	f.publish(3, events.TopicUsageRaw, 7, 7, 1)
	f.publish(3, events.TopicUsageValidated, 8, 8, 74)
	f.publish(3, events.TopicUsageValidated, 9, 9, 26)
	f.publish(31, events.TopicUsageRaw, 1, 2, 300)
	f.publish(0, events.TopicNotifications, 1, 1, 10_000)
	f.publish(0, 77, 1, 1, 10_000) // of a later release
	f.round(f.expiry(2))
	const want = "0/8/1 0/77/1 3/1/6 3/1/7 3/2/9"
	if _, got := f.left(); got != want || f.deleted.Load() != 8 {
		t.Errorf("%d deleted, left %q, want %q", f.deleted.Load(), got, want)
	}
	failing := f.expiry(2)
	failing.Retention = func(context.Context) (map[events.Topic]time.Duration, error) { return nil, errors.New("no broker") }
	if err := failing.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "no broker") {
		t.Errorf("without a broker: %v", err)
	}
}

// A relay that was moved back overwrites publications: these are young, and delay those behind them only
// until they expire themselves.
func TestPublicationsOfARewindAreKept(t *testing.T) {
	f := newExpiryFixture(t)
	f.publish(3, events.TopicUsageRaw, 1, 9, 30)
	tx, err := f.pool.Begin(t.Context())
	must.OK(t, err)
	defer tx.Rollback(context.Background())
	must.Exec(t, tx, `UPDATE outbox_publications SET published_at = now() WHERE from_position = 4`)
	soon, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := f.expiry(6).Look(soon); err != nil { // waits for no lock
		t.Fatal(err)
	}
	must.OK(t, tx.Commit(t.Context()))
	f.round(f.expiry(6))
	if _, got := f.left(); got != "3/1/4 3/1/7 3/1/8 3/1/9" {
		t.Errorf("left %q", got)
	}
	must.Exec(t, f.pool, `UPDATE outbox_publications SET published_at = now() - interval '30 hours' WHERE from_position = 4`)
	f.round(f.expiry(6))
	if n, got := f.left(); n != 0 {
		t.Errorf("left %q", got)
	}
}

// Two instances share the work: no deletion is counted twice, and no instance fails.
func TestTwoInstancesDeletePublications(t *testing.T) {
	f := newExpiryFixture(t)
	for p := range int16(8) {
		f.publish(p, events.TopicUsageRaw, 1, 40, 26)
		f.publish(p, events.TopicUsageRaw, 41, 42, 1)
	}
	done := make(chan error)
	for range 2 {
		go func() {
			for {
				n, _ := f.left()
				if err := f.expiry(3).Look(context.Background()); err != nil || n == 16 {
					done <- err
					return
				}
			}
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n, got := f.left(); n != 16 || f.deleted.Load() != 320 {
		t.Errorf("%d deleted, %d left: %q", f.deleted.Load(), n, got)
	}
}

// A process that ends in the middle of a batch deletes no row of it, and stops no other instance. One
// that ends after a batch leaves the rest to the next round.
func TestDeletionOfPublicationsContinuesAfterACrash(t *testing.T) {
	f := newExpiryFixture(t)
	f.publish(3, events.TopicUsageRaw, 1, 10, 26)
	conn, err := f.pool.Acquire(t.Context())
	must.OK(t, err)
	tx, err := conn.Begin(t.Context())
	must.OK(t, err)
	e := cursors.Expired{Partition: 3, Expiry: cursors.Expiry{Topic: events.TopicUsageRaw, Age: 25 * time.Hour}}
	if n, mine, err := cursors.DeleteExpired(t.Context(), tx, e, 4); n != 4 || !mine || err != nil {
		t.Fatalf("%d, %v, %v", n, mine, err)
	}
	f.round(f.expiry(4)) // another instance deletes at the moment
	if n, _ := f.left(); n != 10 || f.deleted.Load() != 0 {
		t.Errorf("%d deleted beside another instance, %d left", f.deleted.Load(), n)
	}
	must.OK(t, conn.Conn().Close(t.Context()))
	conn.Release()

	ctx, crash := context.WithCancel(t.Context())
	x := f.expiry(4)
	x.Deleted = func(n int64) { f.deleted.Add(n); crash() }
	for { // the server may notice the end of the session later
		if err := x.Look(ctx); err != nil || ctx.Err() != nil {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("stopped: %v", err)
			}
			break
		}
	}
	if n, got := f.left(); n != 6 || f.deleted.Load() != 4 {
		t.Errorf("stopped after a batch of 4: %d deleted, left %q", f.deleted.Load(), got)
	}
	f.round(f.expiry(4))
	if n, got := f.left(); n != 0 || f.deleted.Load() != 10 {
		t.Errorf("the next round: %d deleted, left %q", f.deleted.Load(), got)
	}
}
