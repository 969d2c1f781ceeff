package rebuild_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// Corrections and retractions are recorded events with verdicts of their own.
func TestP3_EveryVerdictOnACorrectionIsInOnePlaceOfADifference(t *testing.T) {
	y := newDiffFixture(t)
	tenant := y.Tenants(1)[0]
	y.Must(Second(y.Pool.Exec(t.Context(), `INSERT INTO tenants VALUES ($1, 'n', 'small', 'ACTIVE', now()) ON CONFLICT DO NOTHING`,
		tenant)))
	y.Append(Usage(tenant, "a", "calls", 10, May), Usage(tenant, "b", "calls", 20, May), Usage(tenant, "no", "unknown", 20, May),
		Correction(tenant, "c", "calls", "a", 2).Pending, Correction(tenant, "r", "calls", "b", -1).Pending,
		Correction(tenant, "late", "calls", "b", 2).Pending)
	y.Settle()
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	d := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, Totals: true, All: true})
	if k := d.Conservation; !k.Holds || k.Verdicts != 4 || k.Counted != 4 || *k.Recorded != 6 || *k.Validated != 4 || *k.Rejected != 2 ||
		*k.Undecided != 0 {
		t.Errorf("%+v", k)
	}
	if len(d.Data) != 1 || string(d.Data[0].Live) != "2" || *d.Data[0].EventCount != 1 {
		t.Errorf("%+v", d.Data)
	}
}

// newDiffFixture is a rebuild fixture whose rebuilds of usage are by another fold than the live one.
func newDiffFixture(t testing.TB) *Rebuilds {
	y := NewRebuilds(t)
	y.Folds.Usage = y.Folds.Usage.With(LargeTwice, FoldLargeTwice)
	y.Deploy()
	return y
}

// TestDiffShowsExactlyTheDifferingKeys compares each figure with sums over the
// events by both folds.
func TestDiffShowsExactlyTheDifferingKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(tier.Seed(t), 0))
	y := newDiffFixture(t)
	tenants := y.Tenants(6)
	want := map[string][2]int64{} // tenant, feature, period: live, rebuilt
	var batch []events.Pending
	for i := range 400 {
		tenant, amount, at := tenants[random.IntN(len(tenants))], 1+random.Int64N(8), May.Add(time.Duration(random.IntN(80))*24*time.Hour)
		feature := []string{"calls", "tokens"}[random.IntN(2)]
		batch = append(batch, Usage(tenant, fmt.Sprint("e", i), feature, amount, at))
		period := at.Format("2006-01")
		if feature == "tokens" {
			period = domain.PeriodLifetime
		}
		sums := want[tenant.String()+feature+period]
		sums[0], sums[1] = sums[0]+amount, sums[1]+amount
		if amount > 5 {
			sums[1] += amount
		}
		want[tenant.String()+feature+period] = sums
	}
	y.Append(batch...)
	y.Settle()
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	got := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, All: true, Limit: 1000, Totals: true})
	if len(got.Data) != len(want) {
		t.Fatalf("%d keys, want %d", len(got.Data), len(want))
	}
	var live, rebuilt, differing int64
	for _, row := range got.Data {
		sums := want[row.TenantID.String()+row.Feature+*row.PeriodKey]
		live, rebuilt = live+sums[0], rebuilt+sums[1]
		if string(row.Live) != fmt.Sprint(sums[0]) || string(row.Rebuilt) != fmt.Sprint(sums[1]) ||
			row.Delta.String() != fmt.Sprint(sums[1]-sums[0]) || *row.EventCount != *row.LiveEventCount {
			t.Errorf("%s %s %s: %s %s %s, want %v", row.TenantID, row.Feature, *row.PeriodKey, row.Live, row.Rebuilt, row.Delta, sums)
		}
		if sums[0] != sums[1] {
			differing++
		}
	}
	only := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, Limit: 1000})
	for _, row := range only.Data {
		if string(row.Live) == string(row.Rebuilt) {
			t.Errorf("%+v does not differ", row)
		}
	}
	if n := int64(len(only.Data)); n != differing || only.Totals != nil {
		t.Errorf("%d keys differ, want %d", n, differing)
	}
	sum := got.Totals.DiffSum
	if sum.Live.String() != fmt.Sprint(live) || sum.Rebuilt.String() != fmt.Sprint(rebuilt) ||
		sum.Delta.String() != fmt.Sprint(rebuilt-live) ||
		sum.Keys != int64(len(want)) || sum.Differing != differing || len(got.Totals.ByPeriod) == 0 || len(got.Totals.ByTenant) == 0 {
		t.Errorf("totals %+v, want %d %d of %d", got.Totals, live, rebuilt, differing)
	}
	if k := got.Conservation; !k.Holds || k.Verdicts != 400 || k.Counted != 400 || *k.Recorded != 400 || *k.Rejected != 0 ||
		*k.Undecided != 0 {
		t.Errorf("conservation %+v", k)
	}
	checkPages(y, rebuild.DiffQuery{RebuildID: r.ID, All: true}, got.Data)
	checkPages(y, rebuild.DiffQuery{RebuildID: r.ID}, only.Data)
	checkEventsOfEachKey(y, r, only.Data)
}

func checkPages(y *Rebuilds, q rebuild.DiffQuery, want []rebuild.DiffRow) {
	y.Helper()
	var pages []rebuild.DiffRow
	for q.Limit = 7; ; {
		d := y.Diff(q)
		if pages = append(pages, d.Data...); d.Next == "" {
			break
		}
		q.After = d.Next
	}
	a, _ := json.Marshal(pages)
	b, _ := json.Marshal(want)
	if string(a) != string(b) {
		y.Errorf("pages give\n%s\nthe whole is\n%s", a, b)
	}
}

func checkEventsOfEachKey(y *Rebuilds, r domain.Rebuild, rows []rebuild.DiffRow) {
	y.Helper()
	for _, row := range rows {
		q := usage.DiffEventsQuery{RebuildID: r.ID, TenantID: row.TenantID, Feature: row.Feature, PeriodKey: *row.PeriodKey, Limit: 2}
		var delta int64
		var first *usage.DiffEvents
		for {
			d, err := y.Reads.DiffEvents(context.Background(), q)
			y.Must(err)
			for _, e := range d.Data {
				if delta += e.Delta; *e.Live <= 5 || *e.Rebuilt != 2**e.Live || e.Delta != *e.Live || e.EventID == "" ||
					e.Position.Number >= e.VerdictPosition.Number {
					y.Errorf("%+v makes no difference", e)
				}
			}
			if first == nil {
				first = &d
			}
			if q.After = d.Next; d.Next == "" {
				break
			}
		}
		if fmt.Sprint(delta) != row.Delta.String() || *first.Explained != *row.Delta || *first.Delta != *row.Delta ||
			first.Unexplained.String() != "0" || first.LiveDrift.String() != "0" {
			y.Errorf("%s %s: the events come to %d, %+v, and the row says %s", row.TenantID, row.Feature, delta, first, row.Delta)
		}
	}
}

// TestP5_DriftIsReported plants rows that no fold made.
func TestP5_DriftIsReported(t *testing.T) {
	y := NewRebuilds(t)
	tenants := y.Tenants(3)
	y.RecordMixedUsage(tenants, 0, 60)
	y.Settle()
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage, Verify: true})
	if n, sample, err := y.Reads.Drift(t.Context(), r); err != nil || n != 0 || len(sample) != 0 {
		t.Fatalf("%d differ: %+v, %v", n, sample, err)
	}
	plant := func(sql string, args ...any) { y.Must(Second(y.Pool.Exec(t.Context(), sql, args...))) }
	plant(`UPDATE usage_aggregates SET amount = amount + 1000000000000000000000 WHERE generation = 1 AND tenant_id = $1
		AND feature = 'calls'`, tenants[0])
	plant(`UPDATE usage_aggregates SET event_count = event_count - 1 WHERE generation = 1 AND tenant_id = $1 AND feature = 'tokens'`,
		tenants[1])
	plant(`DELETE FROM usage_aggregates WHERE generation = 1 AND tenant_id = $1 AND feature = 'calls'`, tenants[1])
	plant(`INSERT INTO usage_aggregates SELECT generation, partition, tenant_id, 'ghost', period_key, subscription_id, 7, 1, 1,
		period_start, period_end, last_event_at
		FROM usage_aggregates WHERE generation = 1 AND tenant_id = $1 AND feature = 'tokens'`, tenants[2])
	plant(`UPDATE usage_aggregates SET last_event_at = last_event_at + interval '1 s' WHERE generation = 1 AND tenant_id = $1
		AND feature = 'calls'`, tenants[2])
	n, sample, err := y.Reads.Drift(t.Context(), r)
	y.Must(err)
	kinds := map[string]bool{}
	for _, row := range sample {
		switch {
		case string(row.Live) == "null":
			kinds["missing"] = true
		case string(row.Rebuilt) == "null":
			kinds["ghost"] = row.Feature == "ghost" && row.Delta.String() == "-7"
		case row.TenantID == tenants[0]:
			kinds["amount"] = row.Delta.String() == "-1000000000000000000000"
		case row.TenantID == tenants[1]:
			kinds["count"] = *row.LiveEventCount == *row.EventCount-1
		default:
			kinds["time"] = row.Delta.String() == "0"
		}
	}
	if n != int64(len(sample)) || !kinds["missing"] || !kinds["ghost"] || !kinds["amount"] || !kinds["count"] || !kinds["time"] {
		t.Errorf("%d found, %v: %+v", n, kinds, sample)
	}
	y.Must(y.Reads.SaveReport(t.Context(), r.ID, sample))
	status, err := y.Reads.Rebuild(t.Context(), r.ID)
	if err != nil || len(status.Drift) != len(sample) {
		t.Errorf("kept %+v, %v", status.Drift, err)
	}
	plant(`INSERT INTO erasures (id, tenant_id, saga_id, state, reason, actor, requested_at, up_to) VALUES ($1, $1, $1, 'RUNNING', 'r', 'a',
		now(), 1)`, tenants[1])
	y.Must(y.Reads.SaveReport(t.Context(), r.ID, sample))
	status, err = y.Reads.Rebuild(t.Context(), r.ID)
	if err != nil || len(status.Drift) == 0 || slices.ContainsFunc(status.Drift, func(d rebuild.DiffRow) bool {
		return d.TenantID == tenants[1]
	}) {
		t.Errorf("kept beside an erasure %+v, %v", status.Drift, err)
	}
	e, err := y.Reads.DiffEvents(t.Context(), usage.DiffEventsQuery{RebuildID: r.ID, TenantID: tenants[0], Feature: "calls",
		PeriodKey: "2026-05"})
	if err != nil || len(e.Data) != 0 || e.Explained.String() != "0" || e.Unexplained.String() != "-1000000000000000000000" ||
		e.LiveDrift.String() != "1000000000000000000000" || e.RebuiltDrift.String() != "0" {
		t.Errorf("what no event explains: %+v, %v", e, err)
	}
}

// TestP3_EveryVerdictIsInOnePlaceOfADifference parks, withholds and rejects.
func TestP3_EveryVerdictIsInOnePlaceOfADifference(t *testing.T) {
	y := NewSourRebuilds(t)
	tenants := y.Tenants(2)
	y.RecordMixedUsage(tenants, 0, 42)
	y.Append(Usage(tenants[0], "withheld", "calls", 3, May))
	y.Drain(y.Validating)
	y.Must(Second(y.Pool.Exec(t.Context(), `INSERT INTO withheld_records (partition, position, topic, tenant_id, dead_letter_id, reason)
		SELECT partition, max(position), 2, tenant_id, gen_random_uuid(), 'r' FROM event_log_rows WHERE tenant_id = $1 AND topic = 2
		GROUP BY partition, tenant_id`, tenants[0])))
	y.Settle()
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	// Of 42 with i%7%4 as the feature, 0, 4: calls, 1, 5: tokens, 2, 6: unknown, 3: broken.
	k := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, Totals: true}).Conservation
	if !k.Holds || k.Counted != 24 || k.Parked != 6 || k.Withheld != 1 || k.Verdicts != 31 || *k.Recorded != 43 || *k.Validated != 31 ||
		*k.Rejected != 12 || *k.Undecided != 0 {
		t.Errorf("%+v", k)
	}
	y.Must(Second(y.Pool.Exec(t.Context(), `UPDATE usage_aggregates SET applied_count = applied_count + 1 WHERE generation = 2`)))
	if k := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, Totals: true}).Conservation; k.Holds {
		t.Errorf("a verdict that is counted twice is not seen: %+v", k)
	}
}

func TestDiffOfTheOtherProjections(t *testing.T) {
	y := NewRebuilds(t)
	tenants := y.Tenants(3)
	y.RecordMixedUsage(tenants, 0, 60)
	y.Settle()
	plant := func(sql string, args ...any) { y.Must(Second(y.Pool.Exec(t.Context(), sql, args...))) }
	for name, sql := range map[string]string{
		projections.ProjectionEntitlements: `UPDATE entitlement_usage SET used = used + 3 WHERE generation = 1 AND tenant_id = $1
			AND feature = 'tokens'`,
		projections.ProjectionSeries: `UPDATE usage_series SET amount = amount + 3 WHERE generation = 1 AND hour = (SELECT min(hour)
			FROM usage_series WHERE tenant_id = $1) AND tenant_id = $1`,
		projections.ProjectionDeadLetters: `UPDATE dead_letter_events SET code = 'other' WHERE generation = 1
			AND id = (SELECT min(id::text)::uuid FROM dead_letter_events WHERE tenant_id = $1)`,
	} {
		r := y.Rebuilt(repair.StartRebuild{Projection: name})
		all := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, All: true, Totals: true, Limit: 1000})
		if len(y.Diff(rebuild.DiffQuery{RebuildID: r.ID}).Data) != 0 || len(all.Data) == 0 || all.Totals.Keys != int64(len(all.Data)) ||
			all.Totals.Differing != 0 || all.Conservation != nil {
			t.Errorf("%s: %d rows, %+v", name, len(all.Data), all.Totals)
		}
		checkPages(y, rebuild.DiffQuery{RebuildID: r.ID, All: true}, all.Data)
		plant(sql, tenants[1])
		d := y.Diff(rebuild.DiffQuery{RebuildID: r.ID, Totals: true})
		if len(d.Data) != 1 || d.Totals.Differing != 1 || d.Data[0].TenantID != tenants[1] || !json.Valid(d.Data[0].Live) ||
			string(d.Data[0].Live) == string(d.Data[0].Rebuilt) {
			t.Fatalf("%s: %+v", name, d)
		}
		if delta := d.Data[0].Delta; (name != projections.ProjectionDeadLetters) != (delta != nil && delta.String() == "-3") {
			t.Errorf("%s: delta %v", name, delta)
		}
		if _, err := y.Reads.DiffEvents(t.Context(), usage.DiffEventsQuery{RebuildID: r.ID, TenantID: tenants[1]}); Refusal(
			err) != "scope_invalid" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDiffComparesWithTheGenerationThatReadersSee goes through promotions of scopes.
func TestDiffComparesWithTheGenerationThatReadersSee(t *testing.T) {
	y := newDiffFixture(t)
	tenants := y.Tenants(3)
	for i, tenant := range tenants {
		y.Must(Second(y.Pool.Exec(t.Context(), `INSERT INTO tenants VALUES ($1, 'n', 'small', 'ACTIVE', now()) ON CONFLICT DO NOTHING`,
			tenant)))
		y.Append(Usage(tenant, fmt.Sprint("a", i), "calls", 10, May), Usage(tenant, fmt.Sprint("b", i), "calls", 20, May.AddDate(0, 1, 0)))
	}
	y.Settle()
	one := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenants[0]})
	checkKeys(y, one, tenants[0], "2026-05", "10 20", tenants[0], "2026-06", "20 40")
	promote := func(r domain.Rebuild) {
		_, err := y.Commands.Promote(t.Context(), commands.Request{By: OperatorKey}, r.ID, "test")
		y.Must(err)
	}
	promote(one)
	checkKeys(y, one, tenants[0], "2026-05", "10 20", tenants[0], "2026-06", "20 40") // still of the previous live rows
	may26 := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage, PeriodKey: "2026-05"})
	checkKeys(y, may26, tenants[1], "2026-05", "10 20", tenants[2], "2026-05", "10 20") // the first one's is promoted already
	promote(may26)
	all := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenants[1]})
	checkKeys(y, all, tenants[1], "2026-06", "20 40") // the rest is promoted by the period's
	checkKeys(y, may26, tenants[1], "2026-05", "10 20", tenants[2], "2026-05", "10 20")
	_, err := y.Commands.RollBack(t.Context(), commands.Request{By: OperatorKey}, may26.ID, "test")
	y.Must(err)
	checkKeys(y, all, tenants[1], "2026-05", "10 20", tenants[1], "2026-06", "20 40")
	if d := y.Diff(rebuild.DiffQuery{RebuildID: all.ID, TenantID: tenants[0], All: true}); len(d.Data) != 0 {
		t.Errorf("outside of the scope: %+v", d.Data)
	}
	d := y.Diff(rebuild.DiffQuery{RebuildID: all.ID, Totals: true, PeriodKey: "2026-06"})
	if k := d.Conservation; len(d.Data) != 1 || !k.Holds || k.Verdicts != 1 || k.Recorded != nil || len(d.AsOf) != 1 {
		t.Errorf("%+v %+v", d, k)
	}
}

// checkKeys checks the keys of a difference: tenant, period and "live rebuilt" of each.
func checkKeys(y *Rebuilds, r domain.Rebuild, want ...any) {
	y.Helper()
	var got, expected []string
	for _, row := range y.Diff(rebuild.DiffQuery{RebuildID: r.ID}).Data {
		got = append(got, fmt.Sprint(row.TenantID, *row.PeriodKey, string(row.Live), " ", string(row.Rebuilt)))
	}
	for part := range slices.Chunk(want, 3) {
		expected = append(expected, fmt.Sprint(part[0].(uuid.UUID), part[1], part[2]))
	}
	slices.Sort(got)
	slices.Sort(expected)
	if !slices.Equal(got, expected) {
		y.Errorf("it shows %v, want %v", got, expected)
	}
}

func TestNothingIsComparedAtUnequalPositions(t *testing.T) {
	y := newDiffFixture(t)
	tenants := y.Tenants(2)
	y.RecordMixedUsage(tenants, 0, 40)
	y.Settle()
	r := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage})
	ask := func() string {
		_, err := y.Reads.Diff(t.Context(), rebuild.DiffQuery{RebuildID: r.ID})
		return Refusal(err)
	}
	if got := ask(); got != "rebuild_not_ready" {
		t.Errorf("before it is folded: %s", got)
	}
	y.WhileRebuilding(func() { y.Ready(r) }, y.Rebuilder(1000))
	if got := ask(); got != "<nil>" {
		t.Errorf("ready: %s", got)
	}
	for _, sql := range []string{
		`UPDATE consumer_checkpoints SET joined = false WHERE consumer = $1 AND generation = 2 AND partition = 3`,
		`UPDATE consumer_checkpoints SET joined = true, position = position + 1 WHERE consumer = $1 AND generation = 2 AND partition = 3`,
		`DELETE FROM consumer_checkpoints WHERE consumer = $1 AND generation = 2 AND partition = 3`,
	} {
		y.Must(Second(y.Pool.Exec(t.Context(), sql, events.GroupAggregator)))
		if got := ask(); got != "rebuild_not_ready" {
			t.Errorf("%s: %s", sql, got)
		}
	}
	if _, err := y.Reads.Diff(t.Context(), rebuild.DiffQuery{RebuildID: NewID()}); Refusal(err) != "rebuild_not_found" {
		t.Error(err)
	}
}

// TestReplacedGenerationsAreNotCompared drops a generation that a promotion has replaced.
func TestReplacedGenerationsAreNotCompared(t *testing.T) {
	y := NewRebuilds(t)
	y.RecordMixedUsage(y.Tenants(2), 0, 20)
	y.Settle()
	first := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	_, err := y.Commands.Promote(t.Context(), commands.Request{By: OperatorKey}, first.ID, "test")
	y.Must(err)
	y.Must(Second(y.Pool.Exec(t.Context(), `UPDATE projection_generations SET dropped_at = now() WHERE projection = 'usage_aggregates'
		AND generation = 1`)))
	y.Must(Second(y.Pool.Exec(t.Context(), `DELETE FROM consumer_checkpoints WHERE consumer = $1 AND generation = 1`,
		events.GroupAggregator)))
	next := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	if d := y.Diff(rebuild.DiffQuery{RebuildID: next.ID, All: true}); len(d.Data) == 0 {
		t.Errorf("%+v", d)
	}
	if _, err := y.Reads.Diff(t.Context(), rebuild.DiffQuery{RebuildID: first.ID}); Refusal(err) != "rebuild_not_ready" {
		t.Errorf("compared with what is dropped: %v", err)
	}
	if s := statusOf(y, first); s.CanRollBackUntil != nil {
		t.Errorf("a way back to what is dropped: %+v", s)
	}
}
