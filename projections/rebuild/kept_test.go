package rebuild_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// nothingInMay is a fold that counts no usage in one period: e.g., usage that must not be billed.
const nothingInMay = projections.ProjectionUsage + "/nothing-in-may"

func foldNothingInMay(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, d, err := usage.FoldV1(e, v)
	if key.PeriodKey == "2026-05" {
		d.Amount, d.Count = 0, 0
	}
	return key, d, err
}

// P5: a fold that counts no usage in a period, promoted for that period alone, empties it for every reader:
// no reader falls back to the figures that were live before. Later events are folded by it, too.
func TestP5_APeriodEmptiedByItsFoldStaysEmpty(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(nothingInMay, foldNothingInMay)
	all := y.Tenants(2)
	a, b := all[0], all[1]
	for i, tenant := range []uuid.UUID{a, a, b} {
		y.Append(Usage(tenant, fmt.Sprint("s", i), "calls", 10, May.AddDate(0, i%2, 0)))
	}
	y.Settle()
	before := y.Head(a)
	r := y.Built(repair.StartRebuild{PeriodKey: "2026-05"})
	diff := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, All: true, Totals: true})
	if len(diff.Data) != 2 || diff.Totals.Live.String() != "20" || diff.Totals.Rebuilt.String() != "0" {
		t.Errorf("the diff: %+v, %+v", diff.Data, diff.Totals)
	}
	for _, row := range diff.Data {
		if string(row.Live) != "10" || string(row.Rebuilt) != "0" || *row.EventCount != 0 || *row.LiveEventCount != 1 ||
			*row.PeriodKey != "2026-05" {
			t.Errorf("a row of the diff: %+v", row)
		}
	}
	y.Must(y.Promote(r))
	empty := map[uuid.UUID]string{a: "2026-06:10 2026-05:0 ", b: "2026-05:0 "}
	checkAmounts(y, "promoted", empty)
	y.Append(Usage(a, "later", "calls", 7, May), Usage(b, "later", "calls", 7, May))
	y.Settle()
	checkAmounts(y, "after later usage", empty)
	now := y.Head(a)
	for _, at := range []*events.Position{&before, &now} {
		page, err := y.Reads.AggregatesAsOf(
			context.Background(),
			TenantViewer(a),
			usage.AggregateQuery{TenantID: a, Feature: "calls", PeriodKey: "2026-05", Limit: 10},
			usage.AsOf{Position: at},
		)
		y.Must(err)
		if len(page.Data) > 1 || len(page.Data) == 1 && (page.Data[0].Amount.String() != "0" || page.Data[0].EventCount != 0) {
			t.Errorf("as of %s: %+v", at, page.Data)
		}
	}
	e, err := y.Reads.Explain(
		context.Background(),
		TenantViewer(a),
		usage.ExplainQuery{TenantID: a, Feature: "calls", PeriodKey: "2026-05", Limit: 10},
	)
	y.Must(err)
	if e.Total.String() != "0" || e.EventCount != 0 || !e.Adds {
		t.Errorf("explained as %+v", e)
	}
	y.Must(y.RollBack(r))
	checkAmounts(y, "rolled back", map[uuid.UUID]string{a: "2026-06:10 2026-05:17 ", b: "2026-05:17 "})
}

// A generation is dropped although some partition of it is always in use, as under load.
func TestAGenerationUnderLoadIsDropped(t *testing.T) {
	tier.AtSize(t)
	y := NewRebuilds(t)
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "a", "calls", 10, May))
	y.Settle()
	r := y.Built(repair.StartRebuild{})
	_, err := y.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, r.ID, "test")
	y.Must(err)
	ctx, stop := context.WithCancel(t.Context())
	var users sync.WaitGroup
	defer users.Wait()
	defer stop()
	const lockHalf = `SELECT FROM consumer_checkpoints WHERE generation = $1 AND partition % 2 = $2 ORDER BY partition FOR UPDATE`
	users.Go(func() {
		var holds pgx.Tx
		for turn := 0; ctx.Err() == nil; turn++ { // it locks one half before it lets go of the other
			next, err := y.Pool.Begin(context.Background())
			if err == nil {
				_, err = next.Exec(context.Background(), lockHalf, r.Generation, turn%2)
			}
			if err != nil {
				t.Error(err)
				break
			}
			if holds != nil {
				_ = holds.Rollback(context.Background())
			}
			holds = next
		}
		_ = holds.Rollback(context.Background())
	})
	y.WhileRebuilding(func() { y.Until(func() bool { return isDropped(y, r) }) }, y.Rebuilder(100))
}

// isDropped reports whether the generation of a rebuild is dropped.
func isDropped(y *Rebuilds, r domain.Rebuild) (dropped bool) {
	y.Helper()
	y.Must(
		y.Pool.QueryRow(context.Background(),
			`SELECT dropped_at IS NOT NULL FROM projection_generations WHERE projection = $1 AND generation = $2`, r.Projection,
			r.Generation).
			Scan(&dropped),
	)
	return dropped
}

// A list does not go on in a generation that no longer gets the newest usage, although its rows are still there.
func TestP5_PagesOfAGenerationThatIsFedNoLongerAreRefused(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	tenants := y.Tenants(2)
	for i, tenant := range tenants {
		y.Append(Usage(tenant, fmt.Sprint("a", i), "calls", 10, May), Usage(tenant, fmt.Sprint("b", i), "calls", 10, May.AddDate(0, 1, 0)))
	}
	y.Settle()
	of, all := usage.AggregateQuery{TenantID: tenants[0], Limit: 1}, usage.PeriodQuery{PeriodKey: "2026-05", Limit: 1}
	figures, err := y.Reads.Aggregates(t.Context(), TenantViewer(tenants[0]), of)
	y.Must(err)
	period, err := y.Reads.OfPeriod(t.Context(), Operator, all)
	y.Must(err)
	y.Must(y.Promote(y.Built(repair.StartRebuild{})))
	of.After, all.After = figures.Next, period.Next
	refused := func(when string, ofTenant, ofAll bool) {
		_, err := y.Reads.Aggregates(t.Context(), TenantViewer(tenants[0]), of)
		if (err == query.ErrCursorInvalid) != ofTenant || err != nil && !ofTenant {
			t.Errorf("%s: a page of the tenant: %v", when, err)
		}
		_, err = y.Reads.OfPeriod(t.Context(), Operator, all)
		if (err == query.ErrCursorInvalid) != ofAll || err != nil && !ofAll {
			t.Errorf("%s: a page of all tenants: %v", when, err)
		}
	}
	change := func(sql string, args ...any) { y.Must(Second(y.Pool.Exec(t.Context(), sql, args...))) }
	const checkpoint = ` consumer_checkpoints %s WHERE consumer = 'meterplex-usage-aggregator' AND generation = 1 AND partition = $1`
	own := events.PartitionOf(tenants[0])
	refused("the generation is kept", false, false)
	change(`UPDATE projection_generations SET broken = 'it failed' WHERE projection = 'usage_aggregates' AND generation = 1`)
	refused("it is broken", true, true)
	change(`UPDATE projection_generations SET broken = NULL`)
	change(`UPDATE`+fmt.Sprintf(checkpoint, `SET joined = false`), own)
	refused("it is not fed in the partition", true, true)
	change(`UPDATE`+fmt.Sprintf(checkpoint, `SET joined = true`), own)
	change(`DELETE FROM`+fmt.Sprintf(checkpoint, ``), (own+1)%events.Partitions)
	refused("another partition's checkpoint is gone", false, true)
	change(`DELETE FROM`+fmt.Sprintf(checkpoint, ``), own)
	refused("the partition's checkpoint is gone", true, true)
}

// expireAll ages all ended rebuilds by a year, then deletes the rows that are no longer needed.
func expireAll(y *Rebuilds) {
	y.Helper()
	_, err := y.Pool.Exec(
		y.Context(),
		`UPDATE projection_rebuilds SET ended_at = ended_at - interval '1 year', ready_at = ready_at - interval '1 year'`,
	)
	y.Must(err)
	for _, sql := range []string{`SELECT expire_answers('90 days', 100)`, `SELECT expire_replays('90 days', 100)`,
		`SELECT expire_rebuild_units('90 days', 100)`} {
		var n int64
		y.Must(y.Pool.QueryRow(y.Context(), sql).Scan(&n))
	}
}

func unitsOf(y *Rebuilds, id uuid.UUID) (n int) {
	y.Helper()
	y.Must(y.Pool.QueryRow(y.Context(), `SELECT count(*) FROM rebuild_units WHERE rebuild_id = $1`, id).Scan(&n))
	return n
}

// A rebuild that ended long ago can be compared, rolled back and promoted again while its generation is fed. Its
// units are deleted once that is dropped; the rebuild itself remains, and says so.
func TestUnitsOfRebuildsAreKeptWhileTheirGenerationIsFed(t *testing.T) {
	y := NewRebuilds(t)
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "a", "calls", 10, May))
	y.Settle()
	r := y.Built(repair.StartRebuild{TenantID: tenant})
	y.Must(y.Promote(r))
	expireAll(y)
	if n := unitsOf(y, r.ID); n == 0 {
		t.Fatal("the units of the live generation are deleted")
	}
	y.Append(Usage(tenant, "b", "calls", 5, May))
	y.Settle()
	if d := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, All: true}); len(d.Data) != 1 {
		t.Errorf("the difference after a year is %+v", d.Data)
	}
	y.Must(y.RollBack(r))
	expireAll(y)
	y.Must(y.Promote(r))
	y.Must(y.RollBack(r))
	_, err := y.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, r.ID, "test")
	y.Must(err)
	expireAll(y)
	if unitsOf(y, r.ID) == 0 {
		t.Error("the units of a generation that is not dropped yet are deleted")
	}
	y.WhileRebuilding(func() { y.Until(func() bool { return isDropped(y, r) }) }, y.Rebuilder(100))
	running := y.Start(repair.StartRebuild{Projection: r.Projection})
	expireAll(y)
	if n := unitsOf(y, r.ID); n != 0 {
		t.Errorf("%d units of a dropped generation are kept", n)
	}
	if unitsOf(y, running.ID) == 0 {
		t.Error("the units of a running rebuild are deleted")
	}
	if now := statusOf(y, r); now.State != domain.RebuildAbandoned || now.Progress != nil {
		t.Errorf("the rebuild is shown as %+v", now)
	}
}
