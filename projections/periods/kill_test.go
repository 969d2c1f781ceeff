package periods_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
)

// P8: each step of a close, a reopening, a decision and a reconciliation has its effect once if its COMMIT is lost, and if only the answer
// to it is.
func TestP8_EachStepHasItsEffectOnceWithoutCommitAndWithoutAnswer(t *testing.T) {
	for name, lost := range map[string]func(*localtest.Cutter) *atomic.Int32{
		"COMMIT lost": func(c *localtest.Cutter) *atomic.Int32 { return &c.Request },
		"answer lost": func(c *localtest.Cutter) *atomic.Int32 { return &c.Answer },
	} {
		t.Run(name, func(t *testing.T) {
			f := newCutFixture(t, lost)
			f.record("a", "calls", 10)
			f.record("b", "tokens", 7)
			closing := f.cutClose()
			f.flow()
			f.cutSaga(closing.ID)
			f.want("lines", f.lines(), "calls 10/1 tokens 7/1")
			f.lateUsage(events.LateUsageAdjust)
			f.record("late", "calls", 2)
			f.record("later", "calls", 3)
			f.flow()
			f.cutDecide(billing.DecideAdjustments{TenantID: f.tenant, Decision: billing.DecisionApprove, Reason: "test",
				Scope: &events.AdjustmentScope{PeriodKey: "2026-05", UpTo: f.Head(f.tenant)}}, 2)
			f.want("adjustments", f.adjusted(), "1 LATE_USAGE 2/1 APPROVED, 1 LATE_USAGE 3/1 APPROVED")
			r := f.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
			f.Must(f.Promote(r))
			f.cutReconcile()
			f.want("adjustments", f.adjusted(),
				"1 LATE_USAGE 2/1 APPROVED, 1 LATE_USAGE 3/1 APPROVED, 1 REBUILD 10/0 PENDING, 1 REBUILD 7/0 PENDING")
			f.check()
			f.cutReopen(2, 2)
			f.want("adjustments", f.adjusted(),
				"1 LATE_USAGE 2/1 APPROVED, 1 LATE_USAGE 3/1 APPROVED, 1 REBUILD 10/0 VOID, 1 REBUILD 7/0 VOID")
			closing = f.cutClose()
			f.flow()
			f.cutSaga(closing.ID)
			f.want("lines", f.lines(), "calls 25/3 tokens 14/1")
			f.check()
			f.want("events", f.text(`SELECT string_agg(subject || ' ' || n, ', ' ORDER BY subject) FROM (SELECT subject, count(*) n
				FROM event_log_rows WHERE tenant_id = $1 AND subject BETWEEN 70 AND 75 GROUP BY 1) s`, f.tenant),
				"70 2, 71 2, 72 2, 73 1, 74 2, 75 1")
			f.want("snapshots", f.text(`SELECT string_agg(snapshot || ' of ' || lines, ', ' ORDER BY snapshot) FROM period_snapshots
				WHERE tenant_id = $1`, f.tenant), "1 of 2, 2 of 2")
		})
	}
}

// cutFixture is a fixture whose commands reach the database by a proxy that cuts connections at COMMIT.
type cutFixture struct {
	*closeFixture
	cutter  *localtest.Cutter
	lost    *atomic.Int32
	proxied *pgxpool.Pool
	keys    int
}

func newCutFixture(t *testing.T, lost func(*localtest.Cutter) *atomic.Int32) *cutFixture {
	f := &cutFixture{closeFixture: newCloseFixture(t)}
	f.deployFold(LargeTwice, FoldLargeTwice)
	cutter, proxied := localtest.NewCutter(t, f.URL)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: proxied, ApplicationName: "cut", MaxConns: 1})
	f.Must(err)
	t.Cleanup(pool.Close)
	log, err := eventlog.New(t.Context(), pool, eventlog.Config{Producer: events.Producer{Service: "test", Instance: "cut", Commit: "0"},
		Written: f.Payloads.Written})
	f.Must(err)
	t.Cleanup(log.Close)
	f.periods = f.periodsOf(store.New(pool, log, store.Config{}))
	f.cutter, f.lost, f.proxied = cutter, lost(cutter), pool
	return f
}

// cut runs a command whose first COMMIT is cut, and repeats it as a client does, until it is answered.
func (f *cutFixture) cut(run func() error) {
	f.Helper()
	f.Must(postgres.InTx(context.Background(), f.proxied, func(tx pgx.Tx) error { // the proxy knows COMMIT by its first one in a session
		return Second(tx.Exec(context.Background(), `SELECT 1`))
	}))
	reached := f.cutter.Reached.Load()
	f.lost.Store(1)
	for n := 0; ; n++ {
		err := run()
		switch refusal := (*domain.Error)(nil); {
		case err == nil:
			if f.cutter.Reached.Load() != reached+1 {
				f.Fatalf("%d COMMITs were cut after %d attempts", f.cutter.Reached.Load()-reached, n)
			}
			return
		case errors.As(err, &refusal), n > 20:
			f.Fatalf("attempt %d: %v", n+1, err)
		}
	}
}

// request is one with a key.
func (f *cutFixture) request() commands.Request {
	f.keys++
	return commands.Request{By: Billing, Idempotency: commands.Idempotency{Key: fmt.Sprint("k", f.keys)}}
}

func (f *cutFixture) cutClose() (c billing.RequestedClose) {
	f.Helper()
	req := f.request()
	f.cut(func() (err error) {
		c, err = f.periods.Close(context.Background(), req, billing.ClosePeriod{TenantID: f.tenant, PeriodKey: "2026-05", Reason: "test"})
		return err
	})
	return c
}

func (f *cutFixture) cutDecide(in billing.DecideAdjustments, count int64) {
	f.Helper()
	req := f.request()
	f.cut(func() error {
		d, err := f.periods.Decide(context.Background(), req, in)
		if err == nil && d.Count != count {
			f.Errorf("%+v, want %d decided", d, count)
		}
		return err
	})
}

func (f *cutFixture) cutReopen(voided, approved int64) {
	f.Helper()
	req := f.request()
	f.cut(func() error {
		r, err := f.periods.Reopen(context.Background(), req, f.tenant, "2026-05", "test")
		if err == nil && (r.Voided != voided || r.Approved != approved) {
			f.Errorf("%+v", r)
		}
		return err
	})
}

// cutSaga runs the steps of a close. The freeze is cut; the result of each step may be lost as well.
func (f *cutFixture) cutSaga(id [16]byte) {
	f.Helper()
	s, err := (&store.Catalogue{Pool: f.Pool}).Saga(context.Background(), id)
	f.Must(err)
	f.cut(func() error {
		_, err := f.periods.CloseKind().Run(context.Background(), s)
		return err
	})
	if s := f.advance(id); s.State != domain.SagaCompleted { // all steps again
		f.Errorf("the close is %s", s.State)
	}
}

func (f *cutFixture) cutReconcile() {
	f.Helper()
	id := f.text(`SELECT id::text FROM sagas WHERE kind = $1 AND ended_at IS NULL`, billing.SagaReconcile)
	list, err := (&store.Catalogue{Pool: f.Pool}).Sagas(context.Background(), commands.SagaQuery{Kind: billing.SagaReconcile,
		Page: commands.Page{Limit: 10}})
	f.Must(err)
	f.cut(func() error {
		_, err := f.periods.ReconcileKind().Run(context.Background(), &list[0])
		return err
	})
	if list[0].ID.String() != id {
		f.Errorf("the reconciliation is %s, want %s", list[0].ID, id)
	}
	f.reconcile()
}
