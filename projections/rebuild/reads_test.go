package rebuild_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/state"
	"github.com/meterplex/meterplex/projections/usage"
)

func statusOf(y *Rebuilds, r domain.Rebuild) rebuild.RebuildStatus {
	y.Helper()
	s, err := y.Reads.Rebuild(y.Context(), r.ID)
	y.Must(err)
	return s
}

// TestProgressIsOfExactPositions moves units by hand.
func TestProgressIsOfExactPositions(t *testing.T) {
	y := NewRebuilds(t)
	tenant := TenantIn(5)
	y.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	var batch []events.Pending
	for i := range 50 {
		batch = append(batch, Usage(tenant, fmt.Sprint(i), "calls", 1, May))
	}
	y.Append(batch...)
	y.Settle()
	exec := func(sql string, args ...any) { y.Must(Second(y.Pool.Exec(t.Context(), sql, args...))) }
	exec(`INSERT INTO tenants VALUES ($1, 'n', 'small', 'ACTIVE', now()) ON CONFLICT DO NOTHING`, tenant)
	r := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenant})
	target := y.Checkpoint(events.GroupAggregator, 5)
	s := statusOf(y, r)
	if p := s.Progress; s.State != domain.RebuildFolding || p.EventsDone != 0 || p.EventsTotal != target || p.EtaSeconds != nil ||
		!p.Converges || len(p.Units) != 1 || p.Units[0].Target != target {
		t.Errorf("begun: %+v %+v", s, p)
	}
	exec(`UPDATE projection_rebuilds SET created_at = now() - interval '10 s'`)
	exec(`UPDATE consumer_checkpoints SET position = $1 WHERE consumer = $2 AND generation = 2`, target/2, events.GroupAggregator)
	s = statusOf(y, r)
	if p := s.Progress; s.State != domain.RebuildFolding || p.EventsDone != target/2 || p.EventsTotal != target || p.EtaSeconds == nil ||
		*p.EtaSeconds < 9.9 || *p.EtaSeconds > 100 || p.EventsPerSecond > float64(target)/20+1 {
		t.Errorf("half: %+v %+v", s, p)
	}
	// All that was there is folded, and a little more came meanwhile.
	exec(`UPDATE consumer_checkpoints SET position = $1 WHERE consumer = $2 AND generation = 2`, target, events.GroupAggregator)
	exec(`UPDATE consumer_checkpoints SET position = $1 WHERE consumer = $2 AND generation = 1 AND partition = 5`, target+10,
		events.GroupAggregator)
	s = statusOf(y, r)
	if p := s.Progress; s.State != domain.RebuildCatchingUp || p.EventsDone != target || p.EventsTotal != target+10 || !p.Converges ||
		p.EtaSeconds == nil {
		t.Errorf("catching up: %+v %+v", s, p)
	}
	exec(`UPDATE consumer_checkpoints SET position = $1 WHERE consumer = $2 AND generation = 1 AND partition = 5`, 3*target,
		events.GroupAggregator)
	if p := statusOf(y, r).Progress; p.Converges || p.EtaSeconds != nil || p.Note == "" {
		t.Errorf("more comes in than is folded: %+v", p)
	}
	exec(`UPDATE consumer_checkpoints SET position = $1 WHERE consumer = $2 AND generation IN (1, 2) AND partition = 5`, target,
		events.GroupAggregator)
	y.WhileRebuilding(func() { y.Ready(r) }, y.Rebuilder(1000))
	s = statusOf(y, r)
	if p := s.Progress; s.State != domain.RebuildReady || p.EventsDone != p.EventsTotal || *p.EtaSeconds != 0 || !p.Units[0].Joined ||
		s.ReadyAt == nil || s.CanRollBackUntil != nil {
		t.Errorf("ready: %+v %+v", s, p)
	}
}

func TestRebuildsAreListedAndTheirGenerationsToo(t *testing.T) {
	y := NewRebuilds(t)
	y.RecordMixedUsage(y.Tenants(2), 0, 30)
	y.Settle()
	first := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	_, err := y.Commands.Promote(t.Context(), commands.Request{By: OperatorKey}, first.ID, "r")
	y.Must(err)
	if s := statusOf(y, first); s.State != domain.RebuildPromoted || *s.Flip != 2 || s.CanRollBackUntil == nil ||
		time.Until(*s.CanRollBackUntil) < 23*time.Hour {
		t.Errorf("promoted: %+v", s)
	}
	second := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage, PeriodKey: "2026-05"})
	page, err := y.Reads.Rebuilds(t.Context(), 1, "")
	if err != nil || len(page.Data) != 1 || page.Data[0].ID != second.ID || page.Next == "" || *page.Data[0].PeriodKey != "2026-05" {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err = y.Reads.Rebuilds(t.Context(), 1, page.Next); err != nil || len(page.Data) != 1 || page.Data[0].ID != first.ID ||
		page.Next != "" {
		t.Errorf("%+v, %v", page, err)
	}
	y.Append(Usage(TenantIn(1), "late", "calls", 1, May), Usage(TenantIn(1), "later", "calls", 1, May))
	all, err := (&state.Reads{DB: query.DB{Pool: y.Pool}, List: y.Projections()}).Projections(t.Context())
	y.Must(err)
	letters, entitlements, figures := all[0], all[1], all[2]
	if figures.Generation != 2 || figures.FoldVersion != usage.V1 || figures.LastRebuild.ID != second.ID || figures.LagEvents != 0 ||
		figures.Checkpoint == 0 ||
		len(figures.Generations) != 3 || figures.Generations[0].State != state.GenerationKept ||
		figures.Generations[1].State != state.GenerationLive ||
		figures.Generations[2].State != state.GenerationRebuilding || *figures.Generations[2].PeriodKey != "2026-05" ||
		len(figures.Scoped) != 0 {
		t.Errorf("usage: %+v", figures)
	}
	if entitlements.LagEvents < 2 || entitlements.LagSeconds <= 0 || letters.LagEvents != 0 || letters.LagSeconds != 0 ||
		letters.LastRebuild != nil {
		t.Errorf("lag of the log's reader %+v, of the dead letters %+v", entitlements, letters)
	}
	if _, err := y.Commands.RollBack(t.Context(), commands.Request{By: OperatorKey}, first.ID, "r"); err != nil {
		t.Error(err)
	}
	if s := statusOf(y, first); s.CanRollBackUntil != nil {
		t.Errorf("rolled back: %+v", s)
	}
}
