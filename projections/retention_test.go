package projections_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// expire ages all ended rebuilds by a year, then deletes the rows that are no longer needed.
func (y *rebuildFixture) expire() {
	y.Helper()
	_, err := y.pool.Exec(y.Context(), `UPDATE projection_rebuilds SET ended_at = ended_at - interval '1 year', ready_at = ready_at - interval '1 year'`)
	y.must(err)
	for _, sql := range []string{`SELECT expire_answers('90 days', 100)`, `SELECT expire_replays('90 days', 100)`, `SELECT expire_rebuild_units('90 days', 100)`} {
		var n int64
		y.must(y.pool.QueryRow(y.Context(), sql).Scan(&n))
	}
}

func (y *rebuildFixture) unitsOf(id uuid.UUID) (n int) {
	y.Helper()
	y.must(y.pool.QueryRow(y.Context(), `SELECT count(*) FROM rebuild_units WHERE rebuild_id = $1`, id).Scan(&n))
	return n
}

// A rebuild that ended long ago can be compared, rolled back and promoted again while its generation is fed. Its
// units are deleted once that is dropped; the rebuild itself remains, and says so.
func TestUnitsOfRebuildsAreKeptWhileTheirGenerationIsFed(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 10, may))
	y.settle()
	r := y.built(commands.StartRebuild{TenantID: tenant})
	y.must(y.promote(r))
	y.expire()
	if n := y.unitsOf(r.ID); n == 0 {
		t.Fatal("the units of the live generation are deleted")
	}
	y.append(usageEvent(tenant, "b", "calls", 5, may))
	y.settle()
	if d := y.diff(rebuild.DiffQuery{RebuildID: r.ID, All: true}); len(d.Data) != 1 {
		t.Errorf("the difference after a year is %+v", d.Data)
	}
	y.must(y.rollBack(r))
	y.expire()
	y.must(y.promote(r))
	y.must(y.rollBack(r))
	_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, r.ID, "test")
	y.must(err)
	y.expire()
	if y.unitsOf(r.ID) == 0 {
		t.Error("the units of a generation that is not dropped yet are deleted")
	}
	y.whileRebuilding(func() { y.until(func() bool { return y.dropped(r) }) }, y.rebuilder(100))
	running := y.start(commands.StartRebuild{Projection: r.Projection})
	y.expire()
	if n := y.unitsOf(r.ID); n != 0 {
		t.Errorf("%d units of a dropped generation are kept", n)
	}
	if y.unitsOf(running.ID) == 0 {
		t.Error("the units of a running rebuild are deleted")
	}
	if now := y.status(r); now.State != domain.RebuildAbandoned || now.Progress != nil {
		t.Errorf("the rebuild is shown as %+v", now)
	}
}

// The retention deletes by itself, round after round, until its context ends.
func TestTheRetentionRunsUntilItIsStopped(t *testing.T) {
	y := newRebuildFixture(t)
	const insert = `INSERT INTO replays (id, kind, reason, state, created_at, ended_at) VALUES ($1, 'range', 'old', 'DONE', now(), now() - interval '100 days')`
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r := &store.Retention{Pool: y.pool, Answers: time.Hour, Ended: 90 * 24 * time.Hour, Logger: slog.New(slog.DiscardHandler), Every: time.Millisecond, Batch: 1}
	go func() { done <- r.Run(ctx) }()
	for range 3 {
		_, err := y.pool.Exec(t.Context(), insert, newID())
		y.must(err)
		y.until(func() bool {
			var n int
			y.must(y.pool.QueryRow(t.Context(), `SELECT count(*) FROM replays`).Scan(&n))
			return n == 0
		})
	}
	stop()
	y.must(<-done)
}
