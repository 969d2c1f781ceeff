package eventlog

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// asOwner opens a database as its owner, which may write rows that the service may not.
func asOwner(t *testing.T, url string) *sql.DB {
	t.Helper()
	owner, err := postgres.OwnerDB(url)
	must.OK(t, err)
	t.Cleanup(func() { _ = owner.Close() })
	return owner
}

// A failover may lose the newest origins. Their numbers, which instances remember, are then
// missing or another origin's.
func TestP2_AnOriginThatAFailoverLostIsRecordedAgain(t *testing.T) {
	l, _, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	before := submit(t, l, tenant, usageEvent(tenant, "before", 1))[0].Position
	if _, err := l.Read(t.Context(), before.Partition, 0, before.Number, 10); err != nil { // cached for readers, too
		t.Fatal(err)
	}
	owner := asOwner(t, url)
	for _, lose := range []string{
		`UPDATE log_origins SET actor_id = 'another', actor_type = 'service'`, // the number was given to another origin
		`UPDATE log_heads SET started_at = started_at - interval '1 hour'`,
	} {
		if _, err := owner.Exec(lose); err != nil {
			t.Fatal(err)
		}
	}
	at := submit(t, l, tenant, usageEvent(tenant, "after", 1))[0].Position
	got, err := l.Read(t.Context(), at.Partition, at.Number-1, at.Number, 1)
	if err != nil || len(got) != 1 || got[0].Actor != (events.Actor{Type: "api_key", ID: "k"}) {
		t.Fatalf("recorded as %+v: %v", got, err)
	}
	reader, _ := openLogAt(t, url)
	if again, err := reader.Read(t.Context(), at.Partition, at.Number-1, at.Number, 1); err != nil || again[0].Actor != got[0].Actor {
		t.Errorf("another instance reads %+v: %v", again, err)
	}
}

// The epoch is raised, and reported once, although no event is appended.
func TestAnIdleInstanceFindsAnotherLifeOfTheServer(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	raised := make(chan []Raised, 10)
	l, err := New(t.Context(), pool, Config{OnRaised: func(r []Raised) { raised <- r }, Written: localtest.CheckPayloads(t).Written})
	must.OK(t, err)
	t.Cleanup(l.Close)
	if first := <-raised; len(first) != events.Partitions || first[0].Reason != ReasonFirst {
		t.Fatalf("at the start %+v", first)
	}
	if _, err := asOwner(t, url).Exec(`UPDATE log_heads SET timeline = timeline - 1`); err != nil {
		t.Fatal(err)
	}
	again := <-raised
	if len(again) != events.Partitions || again[0].Reason != ReasonPromoted || again[0].From != 1 {
		t.Errorf("raised %+v", again)
	}
}

// Two copies of one backup do not know each other, and the topics have the records of both.
func TestP1_TwoRestoresOfOneBackupAreTwoHistories(t *testing.T) {
	l, pool, url := openLog(t)
	owner := asOwner(t, url)
	backup := readEpoch(t, pool, 7)
	var restores []int32
	for range 2 {
		if _, err := owner.Exec(`DELETE FROM log_epochs WHERE partition = 7 AND epoch > $1`, backup); err != nil {
			t.Fatal(err)
		}
		if _, err := owner.Exec(`UPDATE log_heads SET epoch = $1, started_at = started_at - interval '1 hour' WHERE partition = 7`,
			backup); err != nil {
			t.Fatal(err)
		}
		must.OK(t, l.checkLife(t.Context()))
		restores = append(restores, readEpoch(t, pool, 7))
	}
	if restores[0] <= backup || restores[1] <= restores[0] {
		t.Errorf("the backup is of epoch %d, its restores of %d", backup, restores)
	}
}

// A topic that is ahead of the log proves that the database was set back, in any life.
func TestATopicAheadOfTheLogRaisesTheEpoch(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	p := events.PartitionOf(tenant)
	submit(t, l, tenant, usageEvent(tenant, "a", 1))
	epoch := func() int32 { return readEpoch(t, pool, p) }
	before := epoch()
	top := events.RecordPosition{Position: events.Position{Partition: p, Number: 1}, Epoch: before, Log: l.ID()}
	other := events.RecordPosition{Position: events.Position{Partition: p, Number: 9}, Epoch: before, Log: uuid.Must(uuid.NewV7())}
	if err := l.RaiseBeyond(t.Context(), []events.RecordPosition{top, other}); err != nil || epoch() != before {
		t.Fatalf("the epoch went from %d to %d: %v", before, epoch(), err)
	}
	top.Position.Number = 2
	if err := l.RaiseBeyond(t.Context(), []events.RecordPosition{top}); err != nil || epoch() <= before {
		t.Fatalf("the epoch stayed %d: %v", epoch(), err)
	}
	before = epoch()
	if err := l.RaiseBeyond(t.Context(), []events.RecordPosition{top}); err != nil || epoch() != before {
		t.Errorf("a record of an epoch that is over raised the epoch from %d to %d: %v", before, epoch(), err)
	}
}

// An answer that depends on a commit of another instance needs a commit of its own, which waits for
// the synchronous standby. After that commit, duplicates need no further one.
func TestP1_DuplicatesOfAnotherInstanceAreAnsweredAfterACommit(t *testing.T) {
	l, pool, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1))
	other, _ := openLogAt(t, url)
	for _, want := range []string{"committed", "aborted"} {
		if got := submit(t, other, tenant, usageEvent(tenant, "a", 1)); got[0].Status != metering.Duplicate {
			t.Fatalf("answered %+v", got)
		}
		var ended string
		const lastLock = `SELECT pg_xact_status(xmax::text::xid8) FROM log_heads WHERE partition = $1`
		if err := pool.QueryRow(t.Context(), lastLock, events.PartitionOf(tenant)).Scan(&ended); err != nil || ended != want {
			t.Errorf("the transaction that locked the head was %s, want %s: %v", ended, want, err)
		}
	}
}

func readEpoch(t *testing.T, pool *pgxpool.Pool, p int16) (n int32) {
	t.Helper()
	must.OK(t, pool.QueryRow(t.Context(), `SELECT epoch FROM log_heads WHERE partition = $1`, p).Scan(&n))
	return n
}

// An epoch is raised under the locks of its cursors, then of its heads, which is the order of locks everywhere: while it waits for a
// cursor, a session with the cursor, such as a relay's that withholds a record, gets the head.
func TestAnEpochIsRaisedInTheOrderOfLocks(t *testing.T) {
	l, pool, _ := openLog(t)
	const partition = int16(3)
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	must.Exec(t, tx, `SELECT FROM relay_cursors WHERE partition = $1 FOR UPDATE`, partition)
	done := make(chan error, 1)
	go func() { done <- l.raise(context.Background(), []int16{partition}, nil) }()
	for count(t, pool, `SELECT count(*) FROM pg_locks WHERE NOT granted`) == 0 {
		select {
		case err := <-done:
			t.Fatalf("the epoch is raised without the cursor's lock: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = $1 FOR UPDATE NOWAIT`, partition); err != nil {
		t.Errorf("the session that waits for the cursor has locked the head already: %v", err)
	}
	must.OK(t, tx.Rollback(t.Context()))
	if err := <-done; err != nil {
		t.Error(err)
	}
}
