package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/usage"
)

// rebuildModel models the readers' view of a few tenants: sums, and the flips over
// them.
type rebuildModel struct {
	*Rebuilds
	tenants []uuid.UUID
	sums    map[string]int64 // by tenant and period
	flips   []*flip          // in the order of their promotions
	built   []*flip          // all there are
	sent    int
}

// flip is a rebuild, by a fold that multiplies.
type flip struct {
	rebuild domain.Rebuild
	factor  int64
	state   string
}

func (f *flip) covers(tenant uuid.UUID, period string) bool {
	return (f.rebuild.TenantID == uuid.Nil || f.rebuild.TenantID == tenant) && (f.rebuild.PeriodKey == "" || f.rebuild.PeriodKey == period)
}

func (f *flip) overlaps(g *flip) bool {
	a, b := &f.rebuild, &g.rebuild
	return (a.TenantID == b.TenantID || a.TenantID == uuid.Nil || b.TenantID == uuid.Nil) &&
		(a.PeriodKey == b.PeriodKey || a.PeriodKey == "" || b.PeriodKey == "")
}

func times(n int64) usage.Fold {
	return func(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
		key, delta, err := usage.FoldV1(e, v)
		delta.Amount *= n
		return key, delta, err
	}
}

func newRebuildModel(t *testing.T) *rebuildModel {
	y := NewRebuilds(t)
	for n := int64(2); n <= 4; n++ {
		y.Folds.Usage = y.Folds.Usage.With(fmt.Sprint("usage_aggregates/times", n), times(n))
	}
	y.Folds.Usage = y.Folds.Usage.With(usage.V1, usage.FoldV1)
	y.Deploy()
	return &rebuildModel{Rebuilds: y, tenants: y.Tenants(3), sums: map[string]int64{}}
}

var machinePeriods = []string{"2026-05", "2026-06", "2026-07"}

// record appends usage; it is folded by the next comparison.
func (m *rebuildModel) record(rt *rapid.T) {
	for range rapid.IntRange(1, 5).Draw(rt, "events") {
		tenant := rapid.SampledFrom(m.tenants).Draw(rt, "tenant")
		month := rapid.IntRange(0, 2).Draw(rt, "month")
		amount := rapid.Int64Range(1, 1000).Draw(rt, "amount")
		m.sent++
		m.Append(Usage(tenant, fmt.Sprint("r", m.sent), "calls", amount, May.AddDate(0, month, 0)))
		m.sums[tenant.String()+machinePeriods[month]] += amount
	}
}

// start begins a rebuild of all, a tenant, a period or both, during ingest.
func (m *rebuildModel) start(rt *rapid.T) {
	in := repair.StartRebuild{Projection: projections.ProjectionUsage, Reason: "test", Workers: rapid.IntRange(1, 3).Draw(rt, "workers")}
	if rapid.Bool().Draw(rt, "of a tenant") {
		in.TenantID = rapid.SampledFrom(m.tenants).Draw(rt, "tenant")
	}
	if rapid.Bool().Draw(rt, "of a period") {
		in.PeriodKey = rapid.SampledFrom(machinePeriods).Draw(rt, "period")
	}
	factor := rapid.Int64Range(2, 4).Draw(rt, "factor")
	for i := range m.Commands.Projections {
		if p := &m.Commands.Projections[i]; p.Name == projections.ProjectionUsage {
			p.Newest = fmt.Sprint("usage_aggregates/times", factor)
		}
	}
	r, err := m.Commands.Start(context.Background(), commands.Request{By: OperatorKey}, in)
	f := &flip{domain.Rebuild{TenantID: in.TenantID, PeriodKey: in.PeriodKey}, factor, domain.RebuildReady}
	busy := slices.ContainsFunc(m.built, func(g *flip) bool { return g.state == domain.RebuildReady && g.overlaps(f) })
	if m.decided(rt, err, busy, "rebuild_in_progress") {
		return
	}
	f.rebuild = r
	m.built = append(m.built, f)
	m.record(rt)
	m.WhileRebuilding(func() { m.Ready(r) }, m.Rebuilder(rapid.Int64Range(1, 30).Draw(rt, "chunk")), m.Rebuilder(5))
}

// decided compares a request's outcome with the expected one, and reports whether
// that is a refusal.
func (m *rebuildModel) decided(rt *rapid.T, err error, refused bool, code string) bool {
	no := (*domain.Error)(nil)
	if err != nil && !errors.As(err, &no) {
		rt.Fatal(err)
	}
	if refused != (err != nil) || refused && no.Code != code {
		rt.Fatalf("refused with %v; expected a refusal with %s: %v", err, code, refused)
	}
	return err != nil
}

func (m *rebuildModel) pick(rt *rapid.T) *flip {
	if len(m.built) == 0 {
		rt.Skip("no rebuild")
	}
	return m.built[rapid.IntRange(0, len(m.built)-1).Draw(rt, "rebuild")]
}

func (m *rebuildModel) promoteOne(rt *rapid.T) {
	f := m.pick(rt)
	m.Settle() // a period is promoted alone if both generations count the same events
	code := map[string]string{domain.RebuildPromoted: "rebuild_promoted", domain.RebuildAbandoned: "rebuild_not_ready"}[f.state]
	if m.decided(rt, m.Promote(f.rebuild), code != "", code) {
		return
	}
	f.state = domain.RebuildPromoted
	m.flips = append(m.flips, f)
}

func (m *rebuildModel) rollBackOne(rt *rapid.T) {
	f := m.pick(rt)
	at := slices.Index(m.flips, f)
	err := m.RollBack(f.rebuild)
	if at < 0 {
		m.decided(rt, err, true, "rebuild_not_promoted")
		return
	}
	if m.decided(rt, err, slices.ContainsFunc(m.flips[at+1:], f.overlaps), "rebuild_superseded") {
		return
	}
	f.state = domain.RebuildRolledBack
	m.flips = slices.Delete(m.flips, at, at+1)
}

func (m *rebuildModel) abandonOne(rt *rapid.T) {
	f := m.pick(rt)
	if f.state != domain.RebuildReady {
		rt.Skip("not ready")
	}
	_, err := m.Commands.Abandon(context.Background(), commands.Request{By: OperatorKey}, f.rebuild.ID, "test")
	m.decided(rt, err, false, "")
	f.state = domain.RebuildAbandoned
}

// compare compares the view of each tenant's readers with the model.
func (m *rebuildModel) compare(rt *rapid.T) {
	m.Settle()
	for _, tenant := range m.tenants {
		var want strings.Builder
		for _, period := range slices.Backward(machinePeriods) {
			factor := int64(1)
			for _, f := range m.flips {
				if f.covers(tenant, period) {
					factor = f.factor
				}
			}
			if sum := m.sums[tenant.String()+period]; sum != 0 {
				fmt.Fprintf(&want, "%s:%d ", period, sum*factor)
			}
		}
		if got := amountsOf(m.Rebuilds, tenant); got != want.String() {
			rt.Fatalf("%s sees %s instead of %s", tenant, got, want.String())
		}
	}
	identity, err := m.Reads.Identity(context.Background())
	m.Must(err)
	if !identity.Holds || identity.InFlight != 0 {
		rt.Fatalf("%+v", identity.Total)
	}
}

// P5: with rebuilds, promotions, rollbacks and drops of any scope in any order, during
// ingest, readers see the figures of the flips in effect.
func TestP5_RebuildsInAnyOrderMatchTheirModel(t *testing.T) {
	localtest.FewChecks(t, 3)
	rapid.Check(t, func(rt *rapid.T) {
		m := newRebuildModel(t)
		rt.Repeat(map[string]func(*rapid.T){
			"record": m.record, "start": m.start, "promote": m.promoteOne, "promote again": m.promoteOne, "roll back": m.rollBackOne,
			"abandon": m.abandonOne, "": m.compare})
	})
}
