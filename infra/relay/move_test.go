package relay

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/relay/cursors"
)

// migrated returns a migrated database and a pool for it.
func migrated(t *testing.T, keepPlans bool) (url string, pool *pgxpool.Pool) {
	t.Helper()
	url = localtest.Migrated(t, postgres.Migrate)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, KeepPlans: keepPlans})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return url, pool
}

func openSubscriber(t *testing.T) (*Subscriber, *pgxpool.Pool) {
	_, pool := migrated(t, false)
	r := &Relay{Pool: pool, Instance: "me", Logger: slog.New(slog.DiscardHandler)}
	s := newSubscriber(r.withDefaults())
	if err := s.leases.round(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	err := pool.QueryRow(ctx, `SELECT (SELECT position FROM relay_cursors WHERE partition = 2), (SELECT position FROM relay_cursors WHERE partition = 9),
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
