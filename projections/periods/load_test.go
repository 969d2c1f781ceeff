package periods_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
)

// Closes, reopenings, decisions and flips go on beside ingest, the validator and the aggregator of the same partition; they never end in a
// deadlock, and the figures add up.
func TestP8_ClosesUnderLoad(t *testing.T) {
	tier.AtSize(t)
	f := newCloseFixture(t)
	f.deployFold(LargeTwice, FoldLargeTwice)
	f.lateUsage(events.LateUsageAdjust)
	f.record("a", "calls", 10)
	f.Settle()
	r := f.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	f.Must(f.Promote(r)) // a close waits for a rebuild that is READY
	f.Must(f.RollBack(r))
	deadlocks := f.deadlocks()
	ctx, stop := context.WithTimeout(t.Context(), tier.Duration(t, 0, 4*time.Second))
	defer stop()
	var closed, flips atomic.Int32
	f.Live(func() {
		var g sync.WaitGroup
		defer g.Wait()
		for n := range 2 {
			g.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					_, err := f.EventLog.Submit(
						context.Background(),
						f.tenant,
						[]metering.Submitted{{Pending: Usage(f.tenant, fmt.Sprint(n, "-", i), "calls", 3, May)}},
					)
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 2 {
			runner := &commands.SagaRunner{
				Queue:  &store.Sagas{Store: f.Store},
				Kinds:  []commands.SagaKind{f.periods.CloseKind(), f.periods.ReconcileKind()},
				NewID:  NewID,
				Every:  20 * time.Millisecond,
				Logger: slog.New(slog.DiscardHandler),
			}
			g.Go(func() { _ = runner.Run(ctx) })
		}
		g.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				if f.Promote(r) == nil {
					flips.Add(1)
				}
				_ = f.RollBack(r)
			}
		})
		for ctx.Err() == nil {
			f.request()
			_, _ = f.Pool.Exec(ctx, `UPDATE sagas SET next_at = now() WHERE lease IS NULL AND ended_at IS NULL`)
			in := billing.DecideAdjustments{
				TenantID: f.tenant,
				Decision: billing.DecisionApprove,
				Reason:   "test",
				Scope:    &events.AdjustmentScope{PeriodKey: "2026-05", UpTo: f.Head(f.tenant)},
			}
			_, _ = f.periods.Decide(ctx, commands.Request{By: Billing}, in)
			if _, err := f.periods.Reopen(ctx, commands.Request{By: Billing}, f.tenant, "2026-05", "test"); err == nil {
				closed.Add(1)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	f.Must(Second(f.Pool.Exec(t.Context(), `UPDATE sagas SET lease = NULL WHERE ended_at IS NULL`)))
	f.Settle()
	if _, err := f.Commands.Promote(t.Context(), commands.Request{By: OperatorKey}, r.ID, "test"); err == nil {
		f.Must(f.RollBack(r))
	}
	if s := f.advance(f.request().ID); s.State != domain.SagaCompleted { // of a period that is closed: the close that has ended
		t.Fatalf("the close is %s: %v %s", s.State, s.Missing, s.LastError)
	}
	f.reconcile() // a flip after a close that ended under load
	f.check()
	if closed.Load() == 0 || flips.Load() == 0 {
		t.Errorf("%d closes and %d flips under load: nothing was shown", closed.Load(), flips.Load())
	}
	if n := f.deadlocks() - deadlocks; n > 0 {
		t.Errorf("%d deadlocks", n)
	}
	t.Logf("%d closes, %d flips", closed.Load(), flips.Load())
}

func (f *closeFixture) deadlocks() (n int64) {
	f.Helper()
	f.Must(f.Pool.QueryRow(context.Background(), `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n))
	return n
}

// A period is closed once by its tenant's policy, some hours after its end, by any number of instances.
func TestP8_AScheduledCloseIsRequestedOnce(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.Append(Usage(f.tenant, "later", "calls", 1, time.Now().UTC().AddDate(0, 1, 0)))
	f.Settle()
	look := func() {
		f.Helper()
		var g sync.WaitGroup
		ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer stop()
		for range 2 {
			g.Go(func() { _ = f.periodsOf(f.Store).CloseDue(ctx) })
		}
		g.Wait()
	}
	closes := `SELECT coalesce(string_agg(period_key || ' ' || snapshot, ', ' ORDER BY position), '') FROM period_changes
		WHERE tenant_id = $1 AND change = 'close_requested'`
	look()
	f.want("closes without a policy", f.text(closes, f.tenant), "")
	policy := func(hours int, want string) {
		f.Helper()
		f.Must(Second(f.Pool.Exec(t.Context(), `UPDATE tenants SET close_after_hours = $2 WHERE id = $1`, f.tenant, hours)))
		for end := time.Now().Add(time.Minute); f.text(closes, f.tenant) != want && time.Now().Before(end); {
			look() // on a busy machine a look may take longer
		}
		f.want("closes", f.text(closes, f.tenant), want)
	}
	policy(24, "2026-05 1")
	f.want("events", f.text(`SELECT count(*)::text FROM event_log_rows WHERE tenant_id = $1 AND subject = 70`, f.tenant), "1")
	id := uuid.MustParse(f.text(`SELECT id::text FROM sagas WHERE kind = $1 AND tenant_id = $2`, domain.SagaPeriodClose, f.tenant))
	f.flow()
	if s := f.advance(id); s.State != domain.SagaCompleted {
		t.Fatalf("the close is %s %v", s.State, s.Missing)
	}
	f.reopen()
	look()
	f.want("closes after a reopening", f.text(closes, f.tenant), "2026-05 1")
	_, err := f.periods.Close(
		t.Context(),
		commands.Request{By: Billing},
		billing.ClosePeriod{
			TenantID:  f.tenant,
			PeriodKey: "2026-05",
			Reason:    "test",
			Scheduled: true,
		},
	) // found before it was closed and reopened
	f.want("closes", f.text(closes, f.tenant), "2026-05 1")
	if err == nil {
		t.Error("a period that is no longer due is closed")
	}
	policy(24*30, "2026-05 1, 2026-05 2") // it was reopened before that
	f.check()
}

// lockedTrips counts the round trips of each transaction of a pool from the answer to its lock on a head to its COMMIT.
type lockedTrips struct {
	mu   sync.Mutex
	open map[*pgx.Conn][]string // the statements of each round trip since the lock
	held [][]string             // of each transaction
}

func (c *lockedTrips) trip(conn *pgx.Conn, statements []string) {
	sql := strings.Join(statements, ";\n")
	c.mu.Lock()
	defer c.mu.Unlock()
	list, locked := c.open[conn]
	switch {
	case locked:
		c.open[conn] = append(list, sql)
		if strings.EqualFold(sql, "commit") {
			c.held = append(c.held, c.open[conn])
			delete(c.open, conn)
		}
	case strings.Contains(sql, "FROM log_heads") && strings.Contains(sql, "FOR UPDATE"):
		c.open[conn] = []string{}
	}
}

// While a close holds the head of its partition, ingest of all the partition's tenants waits. The COPY of the events, which is not counted
// here, is one more round trip.
func TestACloseHoldsTheHeadForFewRoundTrips(t *testing.T) {
	f := newCloseFixture(t)
	seen := &lockedTrips{open: map[*pgx.Conn][]string{}}
	traced, err := postgres.Open(t.Context(), postgres.Config{URL: f.URL, Tracer: localtest.RoundTrips(seen.trip)})
	f.Must(err)
	t.Cleanup(traced.Close)
	f.periods = f.periodsOf(store.New(traced, f.EventLog, store.Config{}))
	f.record("a", "calls", 1)
	f.flow()
	f.advance(f.request().ID)
	_, err = f.periods.Close(t.Context(), commands.Request{By: Billing, Idempotency: commands.Idempotency{Key: "k"}},
		billing.ClosePeriod{TenantID: f.tenant, PeriodKey: "2026-04", Reason: "test"})
	f.Must(err)
	if len(seen.held) != 3 {
		t.Fatalf("%d transactions locked a head, want a request, its freeze and another request: %q", len(seen.held), seen.held)
	}
	for i, c := range []struct {
		name string
		most int
	}{
		{"request", 3},                         // its offboarding; the writes with the start of the saga; COMMIT
		{"freeze", 4},                          // its conditions; the rows; the writes; COMMIT
		{"request with an Idempotency-Key", 5}, // the look-up and the answer as well
	} {
		if got := len(seen.held[i]); got > c.most {
			t.Errorf(
				"the %s holds the head for %d round trips, want at most %d:\n%s",
				c.name,
				got,
				c.most,
				strings.Join(seen.held[i], "\n---\n"),
			)
		}
	}
}
