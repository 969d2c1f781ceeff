package relay

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/relay/cursors"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// migrated returns a migrated database and a pool for it.
func migrated(t *testing.T, keepPlans bool) (url string, pool *pgxpool.Pool) {
	t.Helper()
	url = localtest.Migrated(t, postgres.Migrate)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, KeepPlans: keepPlans})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	return url, pool
}

func openSubscriber(t *testing.T) (*Subscriber, *pgxpool.Pool) {
	_, pool := migrated(t, false)
	r := &Relay{Pool: pool, Instance: "me", Logger: slog.New(slog.DiscardHandler)}
	s := newSubscriber(r.withDefaults())
	must.OK(t, s.leases.round(t.Context()))
	return s, pool
}

func TestP2_CursorMovesOnceAndOnlyUnderItsFence(t *testing.T) {
	s, pool := openSubscriber(t)
	ctx := context.Background()
	const heads = `UPDATE log_heads h SET position = 10, timeline = s.timeline, started_at = s.started_at FROM server_life() s`
	if _, err := pool.Exec(ctx, heads); err != nil {
		t.Fatal(err)
	}
	moves := []cursorMove{{span{partition: 9, fence: 1}, 5}, {span{partition: 2, fence: 1}, 7}}
	runs := []run{runOf(9, 1, 5, 100)}
	if lost := s.move(ctx, moves, runs); len(lost) != 0 {
		t.Fatalf("lost %v", lost)
	}
	// If the first answer was lost, the repeated move is recognized as ours.
	if lost := s.move(ctx, moves, runs); len(lost) != 0 {
		t.Fatalf("a committed move is reported as lost: %v", lost)
	}
	// Another relay, which has the lease now, has made the same move: it is not ours.
	if _, err := pool.Exec(ctx, `UPDATE relay_cursors SET fence = 2, owner = 'other', position = 8 WHERE partition = 2`); err != nil {
		t.Fatal(err)
	}
	next := []cursorMove{{span{partition: 9, fence: 1, after: 5}, 6}, {span{partition: 2, fence: 1, after: 7}, 8}}
	if lost := s.move(ctx, next, []run{runOf(9, 6, 6, 105), runOf(2, 8, 8, 3)}); len(lost) != 1 || !lost[2] {
		t.Fatalf("lost %v, want partition 2", lost)
	}
	var cursor2, cursor9, publications int64
	err := pool.QueryRow(ctx, `SELECT (SELECT position FROM relay_cursors WHERE partition = 2), (SELECT position FROM relay_cursors
		WHERE partition = 9),
 (SELECT count(*) FROM outbox_publications)`).Scan(&cursor2, &cursor9, &publications)
	if err != nil || cursor2 != 8 || cursor9 != 6 || publications != 2 {
		t.Errorf("cursors %d and %d, %d publications, %v", cursor2, cursor9, publications, err)
	}
	// The next renewal notices the lost lease.
	if err := s.leases.round(ctx); err != nil || len(s.held.list()) != 31 {
		t.Errorf("%d partitions held, %v", len(s.held.list()), err)
	}
}

// runOf is a run of records on a topic, one at each position.
func runOf(partition int16, from, to, offset int64) run {
	return run{cursors.Publication{Partition: partition, Topic: 1, From: from, To: to, Offset: offset}, to - from + 1}
}

// slowAnswers is a pool whose answers take a moment, and notes when the last statement was sent.
type slowAnswers struct {
	Pool
	sent time.Time
}

func (p *slowAnswers) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.sent = time.Now()
	defer time.Sleep(10 * time.Millisecond)
	return p.Pool.Query(ctx, sql, args...)
}

// A lease counts from before its request: the database counts it from a moment between the request and the answer, so
// that a lease counted from a late answer is used after another relay has acquired it.
func TestP2_ALeaseCountsFromItsRequest(t *testing.T) {
	s, _ := openSubscriber(t)
	slow := &slowAnswers{Pool: s.Pool}
	s.Pool = slow
	for name, request := range map[string]func(context.Context) error{
		"renewed": s.leases.renew,
		"acquired": func(ctx context.Context) error {
			for _, l := range s.held.list() {
				s.held.forget(l.partition, l.fence)
			}
			if _, err := s.Pool.Exec(ctx, `UPDATE relay_cursors SET owner = NULL`); err != nil {
				return err
			}
			return s.leases.acquire(ctx, 32)
		},
	} {
		must.OK(t, request(t.Context()))
		if n := len(s.held.list()); n != 32 {
			t.Fatalf("%s: %d partitions are held", name, n)
		}
		for _, p := range s.held.by {
			if p.renewed.After(slow.sent) {
				t.Errorf("%s: the lease of partition %d counts from %s after its request", name, p.partition, p.renewed.Sub(slow.sent))
				break
			}
		}
	}
}

// followed is a memory that notes the fences that it follows.
type followed map[int16]int64

func (f followed) Follow(partition int16, fence int64, _ int32, _ int64) { f[partition] = fence }

func (followed) Take(int16, int64, int64, int64, int) (none []*events.Envelope) { return nil }

// meanwhile is a pool that runs a function before each statement is sent.
type meanwhile struct {
	Pool
	run func()
}

func (p *meanwhile) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.run()
	return p.Pool.Query(ctx, sql, args...)
}

// A head that was requested under an earlier lease starts no reading from memory under the next one: another relay may have withheld events
// behind it.
func TestP3_AHeadOfAnEarlierLeaseStartsNoReadingFromMemory(t *testing.T) {
	s, pool := openSubscriber(t)
	must.Exec(t, pool, `UPDATE log_heads h SET timeline = s.timeline, started_at = s.started_at FROM server_life() s`)
	memory := followed{}
	s.Recent = memory
	const lost = int16(5)
	s.Pool = &meanwhile{Pool: s.Pool, run: func() {
		h := *s.held.by[lost]
		s.held.forget(lost, h.fence)
		h.fence++
		s.held.add([]*holding{&h})
	}}
	must.OK(t, s.readEachHead(t.Context()))
	held := s.held.fences()
	for p, fence := range memory {
		want := held[p]
		if p == lost {
			want = 0
		}
		if fence != want || p != lost && want == 0 {
			t.Errorf("the relay follows partition %d under the lease %d, want %d", p, fence, want)
		}
	}
	if len(memory) != 32 {
		t.Errorf("%d partitions were read", len(memory))
	}
}

// An instance that lost a replay to another one, or to its end, moves no cursor any more, so that no record is counted twice.
func TestP2_AReplayMovesItsCursorFromWhereItIs(t *testing.T) {
	_, pool := migrated(t, false)
	ctx, replay := t.Context(), uuid.New()
	for _, sql := range []string{
		`INSERT INTO replays (id, kind, state, topic, reason, created_at) VALUES ($1, 'range', 'RUNNING', 1, 'test', now())`,
		`INSERT INTO replay_units (replay_id, partition, first, cursor, upto) VALUES ($1, 3, 0, 0, 100), ($1, 4, 0, 100, 100)`,
	} {
		must.Exec(t, pool, sql, replay)
	}
	open := func() *cursors.OpenUnit {
		t.Helper()
		units, err := cursors.Open(ctx, pool, replay)
		if err != nil || len(units) != 1 || units[0].Partition != 3 {
			t.Fatalf("%+v %v", units, err)
		}
		return &units[0]
	}
	move := func(u *cursors.OpenUnit, to, records int64, want bool) {
		t.Helper()
		if moved, err := u.Move(ctx, pool, to, records); err != nil || moved != want {
			t.Errorf("moved to %d: %t, %v", to, moved, err)
		}
	}
	frozen, other := open(), open()
	move(other, 50, 50, true)
	move(frozen, 70, 70, false)
	move(other, 60, 10, true)
	must.Exec(t, pool, `UPDATE replays SET state = 'FAILED' WHERE id = $1`, replay)
	move(other, 70, 10, false)
	var cursor, records int64
	must.OK(t, pool.QueryRow(ctx, `SELECT cursor, records FROM replay_units WHERE replay_id = $1 AND partition = 3`, replay).Scan(&cursor,
		&records))
	if cursor != 60 || records != 60 {
		t.Errorf("the cursor is at %d after %d records", cursor, records)
	}
	if units, err := cursors.Open(ctx, pool, replay); err != nil || len(units) != 0 {
		t.Errorf("of an ended replay %+v are open: %v", units, err)
	}
}

// TestKeptPlansReadTheLogByItsKey checks plans that were made for an empty log and are kept after it has
// grown.
func TestKeptPlansReadTheLogByItsKey(t *testing.T) {
	tier.AtSize(t)
	_, pool := migrated(t, true)
	conn, err := pool.Acquire(t.Context())
	must.OK(t, err)
	defer conn.Release()
	for name, sql := range map[string]string{"withhold": withholdSQL, "move": cursors.Statements()["move"], "heads": headsSQL} {
		plan := localtest.Plan(t, conn.Conn(), sql)
		if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Bitmap") {
			t.Errorf("%s reads all of a table:\n%s", name, plan)
		}
		if strings.Contains(plan, "on event_log_rows") && !localtest.LogByKey(plan) {
			t.Errorf("%s does not read the log by its key:\n%s", name, plan)
		}
	}
}
