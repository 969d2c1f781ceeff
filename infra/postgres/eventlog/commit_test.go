package eventlog

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

func TestP1_LostCommitAnswersAreResolved(t *testing.T) {
	database := localtest.Migrated(t, postgres.Migrate)
	for name, arm := range localtest.LostCommits {
		t.Run(name, func(t *testing.T) {
			c, proxied := localtest.NewCutter(t, database)
			l, pool := openLogAt(t, proxied)
			tenant := uuid.Must(uuid.NewV7())
			submit(t, l, tenant, usageEvent(tenant, "warm", 1)) // origins and statements are known
			for round := range 5 {
				before := c.Reached.Load()
				arm(c).Store(int32(1 + round%2)) // the second look may be cut, too
				outcomes := submit(t, l, tenant, usageEvent(tenant, fmt.Sprint("a", round), 1), usageEvent(tenant, fmt.Sprint("b", round),
					1))
				if outcomes[0].Status != metering.Appended || outcomes[1].Status != metering.Appended {
					t.Fatalf("round %d: %v", round, outcomes)
				}
				if c.Reached.Load() == before {
					t.Fatalf("round %d: no COMMIT was cut", round)
				}
				checkRepeated(t, l, usageEvent(tenant, fmt.Sprint("a", round), 1), outcomes[0].Position)
			}
			if n := count(t, pool, `SELECT count(*) FROM event_log WHERE tenant_id = $1`, tenant); n != 11 {
				t.Fatalf("%d events for 11", n)
			}
			checkDense(t, pool)
		})
	}
}

// checkRepeated checks that an event that is submitted again is a duplicate of the one at first.
func checkRepeated(t *testing.T, l *Log, s metering.Submitted, first events.Position) {
	t.Helper()
	if again := submit(t, l, s.TenantID, s); again[0].Status != metering.Duplicate || again[0].Position != first {
		t.Fatalf("%s is submitted again: %v, first %s", s.DedupeKey, again, first)
	}
}

func TestP1_AGroupFoundInTheLogWasAppended(t *testing.T) {
	// The second attempt may find all events recorded, and write no rows.
	l, _, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	s := usageEvent(tenant, "a", 1)
	first := submit(t, l, tenant, s)
	again := submit(t, l, tenant, s) // the same EventID: ours, of a commit that was not answered
	if again[0] != first[0] {
		t.Fatalf("%v, then %v", first, again)
	}
}

// The relay polls at once after a COMMIT whose answer was lost: no consumer of this process is notified of its events.
func TestP11_ASubmissionFoundInTheLogWakesTheRelay(t *testing.T) {
	database := localtest.Migrated(t, postgres.Migrate)
	for name, event := range map[string]func(uuid.UUID, string, int) metering.Submitted{"usage": usageEvent, "ask": requestFor} {
		t.Run(name, func(t *testing.T) {
			c, proxied := localtest.NewCutter(t, database)
			tenant := uuid.Must(uuid.NewV7())
			woken := make(chan string, 10)
			cache := recent.New()
			reader := cache.Reader(events.TopicUsageRaw, nil)
			l, pool := openLogAt(t, proxied, func(c *Config) {
				c.Histories = &grants{limits: map[uuid.UUID]int64{tenant: 10}}
				c.Recent = cache
				c.OnInMemory = func([]int16) { woken <- "later" }
				c.OnAppend = func([]int16) { woken <- "at once" }
			})
			for round, want := range []string{"later", "at once", "later"} {
				at, epoch := events.Position{Partition: events.PartitionOf(tenant)}, int32(0)
				must.OK(t, pool.QueryRow(t.Context(), `SELECT topic_positions[1], epoch FROM log_heads WHERE partition = $1`, at.Partition).
					Scan(&at.Number, &epoch))
				reader.Reached(at, epoch) // the consumer has read all
				c.Answer.Store(int32(round % 2))
				if outcomes := submit(t, l, tenant, event(tenant, fmt.Sprint("e", round), 1)); outcomes[0].Status != metering.Appended {
					t.Fatalf("event %d: %v", round, outcomes)
				}
				if got := <-woken; got != want {
					t.Errorf("event %d: the relay polls %s instead of %s", round, got, want)
				}
			}
			if c.Reached.Load() != 1 {
				t.Fatalf("%d COMMITs were cut instead of 1", c.Reached.Load())
			}
		})
	}
}

func TestP1_SubmitSurvivesTerminatedBackends(t *testing.T) {
	l, pool, database := openLog(t)
	owner, err := postgres.OwnerDB(database)
	must.OK(t, err)
	defer owner.Close()
	tenant := uuid.Must(uuid.NewV7())
	stop := make(chan struct{})
	var killed, stored atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for at, kills := int64(0), int64(0); ; {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
			if now := stored.Load(); now != at {
				at, kills = now, 0
			}
			// If a transaction took longer than the pause, no transaction would ever pass.
			if kills == 3 || killed.Load() >= 60 {
				continue
			}
			if r, err := owner.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
				AND pid <> pg_backend_pid() AND state <> 'idle' LIMIT 1`); err == nil {
				n, _ := r.RowsAffected()
				killed.Add(n)
				kills += n
			}
		}
	}()
	for n := 0; n < 300 || (killed.Load() == 0 && n < 20_000); n++ {
		if p := submit(t, l, tenant, usageEvent(tenant, fmt.Sprint("e", n), 1)); p[0].Status != metering.Appended {
			t.Fatalf("event %d: %v", n, p)
		}
		stored.Add(1)
	}
	close(stop)
	<-done
	if killed.Load() == 0 {
		t.Fatal("no backend was terminated")
	}
	t.Logf("%d backends terminated", killed.Load())
	pool.Reset() // the last of them may lie there, dead
	checkDense(t, pool)
}

func TestP1_NothingIsAnsweredBeforeItsCommit(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": 3 * smallRows} {
		t.Run(name, func(t *testing.T) {
			l, _, database := openLog(t)
			tenant := uuid.Must(uuid.NewV7())
			var batch []metering.Submitted
			for n := range size {
				batch = append(batch, usageEvent(tenant, fmt.Sprint("e", n), 1))
			}
			held := localtest.HoldCommits(t, database, "INSERT", "event_log_rows")
			answered := make(chan error, 1)
			go func() {
				_, err := l.Submit(context.Background(), tenant, batch)
				answered <- err
			}()
			held.Reached()
			select {
			case err := <-answered:
				answered <- err
				t.Errorf("a batch was answered while its COMMIT was under way: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			held.LetGo()
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAFailedAttemptGivesItsConnectionBack(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	s := &submission{tenant: tenant, batch: []metering.Submitted{usageEvent(tenant, "a", 1)}, outcomes: make([]metering.Outcome, 1)}
	g := newGroup(l, []*submission{s})
	for round := range 40 { // more than the pool has
		g.partitions = []int16{99}
		if err := l.writers[0].attempt(t.Context(), g, false, true); err == nil {
			t.Fatal("a partition that does not exist was locked")
		}
		g.partitions, g.members[0].submitted.Payload = partitionsOf(g.pending), []byte("no JSON")
		if err := l.writers[0].attempt(t.Context(), g, round%2 == 0, true); err == nil {
			t.Fatal("a payload that is no JSON was taken")
		}
	}
	// One in mid-transaction is closed beside, and counts until that is done.
	must.Until(t, "no connection is held", func() bool { return pool.Stat().AcquiredConns() == 0 })
}
