package projections_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// doubled is a version of the fold whose figures are easy to recognize.
const doubled = "usage_aggregates/doubled"

func foldDoubled(e *events.Envelope) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e)
	delta.Amount *= 2
	return key, delta, err
}

// versions adds a fold version to a rebuild fixture besides v1; new generations are bound to
// it.
func (y *rebuildFixture) versions(newest string, fold usage.Fold) {
	y.folds.Usage = models.DefaultFolds().Usage.With(newest, fold)
	y.deploy()
}

func (y *rebuildFixture) promote(r domain.Rebuild) error {
	_, err := y.rebuilds.Promote(context.Background(), commands.Request{By: operatorKey}, r.ID, "test")
	return err
}

func (y *rebuildFixture) rollBack(r domain.Rebuild) error {
	_, err := y.rebuilds.RollBack(context.Background(), commands.Request{By: operatorKey}, r.ID, "test")
	return err
}

func (y *rebuildFixture) built(in commands.StartRebuild) domain.Rebuild {
	y.Helper()
	in.Projection = projections.ProjectionUsage
	return y.rebuilt(in)
}

// amounts returns a tenant's visible amounts, as "period:amount …", newest period first.
func (y *rebuildFixture) amounts(tenant uuid.UUID) (seen string) {
	y.Helper()
	page, err := y.reads.Aggregates(context.Background(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 100})
	y.must(err)
	for _, a := range page.Data {
		seen += a.PeriodKey + ":" + a.Amount.String() + " "
	}
	return seen
}

func (y *rebuildFixture) checkAmounts(when string, wanted map[uuid.UUID]string) {
	y.Helper()
	for tenant, want := range wanted {
		if got := y.amounts(tenant); got != want {
			y.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	y.checkPeriods(when, wanted)
	identity, err := y.reads.Identity(context.Background())
	y.must(err)
	if !identity.Holds {
		y.Errorf("%s: %+v", when, identity.Total)
	}
}

// checkPeriods compares the figures of all tenants, read period by period in pages of one, with the tenants' own.
func (y *rebuildFixture) checkPeriods(when string, wanted map[uuid.UUID]string) {
	y.Helper()
	want := map[string][]string{}
	for _, tenant := range slices.SortedFunc(maps.Keys(wanted), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		for figure := range strings.FieldsSeq(wanted[tenant]) {
			period, amount, _ := strings.Cut(figure, ":")
			want[period] = append(want[period], tenant.String()+" "+amount)
		}
	}
	for period := range want {
		all, _ := y.ofPeriod(usage.PeriodQuery{PeriodKey: period, Limit: 1})
		var amounts []string
		features := map[string][]string{}
		for _, figure := range all {
			words := strings.Fields(figure)
			amounts, features[words[1]] = append(amounts, words[0]+" "+words[2]), append(features[words[1]], figure)
		}
		if !slices.Equal(amounts, want[period]) {
			y.Errorf("%s: figures of all tenants in %s: %q, want %q", when, period, amounts, want[period])
		}
		for feature, whole := range features {
			if got, _ := y.ofPeriod(usage.PeriodQuery{PeriodKey: period, Feature: feature, Limit: 1}); !slices.Equal(got, whole) {
				y.Errorf("%s: figures of %s in %s: %q, want %q", when, feature, period, got, whole)
			}
		}
	}
}

// ofPeriod reads the pages of a list from q.After on, as "tenant feature amount". It ends with the first
// error.
func (y *rebuildFixture) ofPeriod(q usage.PeriodQuery) (list []string, err error) {
	for {
		page, err := y.reads.OfPeriod(context.Background(), operator, q)
		if err != nil {
			return list, err
		}
		for _, a := range page.Data {
			list = append(list, a.TenantID.String()+" "+a.Feature+" "+a.Amount.String())
		}
		if q.After = page.Next; q.After == "" {
			return list, nil
		}
	}
}

// P5: a rebuild of one tenant or one period changes only that scope; flips of
// overlapping scopes form a stack, the latest on top, and are rolled back from the top.
func TestP5_ScopedRebuildsTouchTheirScopeAlone(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	all := y.tenants(2)
	a, b := all[0], all[1]
	for i, tenant := range []uuid.UUID{a, a, b, b} {
		y.append(usageEvent(tenant, fmt.Sprint("s", i), "calls", 10, may.AddDate(0, i%2, 0)))
	}
	y.settle()
	plain := map[uuid.UUID]string{a: "2026-06:10 2026-05:10 ", b: "2026-06:10 2026-05:10 "}
	y.checkAmounts("before", plain)

	ofTenant := y.built(commands.StartRebuild{TenantID: a})
	var rows, strangers int
	y.must(y.pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE tenant_id <> $2) FROM usage_aggregates WHERE generation = $1`, ofTenant.Generation, a).Scan(&rows, &strangers))
	if rows != 2 || strangers != 0 {
		t.Errorf("the generation of one tenant has %d rows, %d of others", rows, strangers)
	}
	y.checkAmounts("while it waits", plain)
	y.must(y.promote(ofTenant))
	y.checkAmounts("one tenant", map[uuid.UUID]string{a: "2026-06:20 2026-05:20 ", b: "2026-06:10 2026-05:10 "})

	ofPeriod := y.built(commands.StartRebuild{PeriodKey: "2026-05"})
	y.must(y.promote(ofPeriod))
	y.checkAmounts("and one period", map[uuid.UUID]string{a: "2026-06:20 2026-05:20 ", b: "2026-06:10 2026-05:20 "})

	y.append(usageEvent(a, "later", "calls", 1, may), usageEvent(b, "later", "calls", 1, may))
	y.settle()
	y.checkAmounts("all are fed", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:10 2026-05:22 "})

	refusedWith(t, "rebuild_superseded", y.rollBack(ofTenant))
	y.must(y.rollBack(ofPeriod))
	y.checkAmounts("the period back", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:10 2026-05:11 "})
	y.must(y.rollBack(ofTenant))
	y.checkAmounts("the tenant back", map[uuid.UUID]string{a: "2026-06:10 2026-05:11 ", b: "2026-06:10 2026-05:11 "})

	whole := y.built(commands.StartRebuild{})
	y.must(y.promote(whole))
	y.checkAmounts("all", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:20 2026-05:22 "})
	y.must(y.promote(ofTenant)) // it was kept and fed
	y.checkAmounts("again", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:20 2026-05:22 "})
}

// A cursor stays with the generations of its list's first page.
func TestP5_PagesStayInTheirGeneration(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	tenant := y.tenants(1)[0]
	for i := range 3 {
		y.append(usageEvent(tenant, fmt.Sprint("p", i), "calls", 10, may.AddDate(0, i, 0)))
	}
	y.settle()
	r := y.built(commands.StartRebuild{})
	first, err := y.reads.Aggregates(t.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 1})
	y.must(err)
	rest := func() (string, error) {
		page, err := y.reads.Aggregates(t.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 100, After: first.Next})
		if err != nil {
			return "", err
		}
		return page.Data[0].Amount.String() + " " + page.Data[1].Amount.String(), nil
	}
	for _, flip := range []func(domain.Rebuild) error{y.promote, y.rollBack, y.promote} {
		y.must(flip(r))
		if got, err := rest(); err != nil || got != "10 10" {
			t.Errorf("the second page has %q, %v", got, err)
		}
	}
	cleaner := y.rebuilder(0)
	cleaner.Keep = time.Nanosecond
	y.whileRebuilding(func() {
		y.until(func() bool {
			var left int
			y.must(y.pool.QueryRow(t.Context(), `SELECT count(*) FROM usage_aggregates WHERE generation = 1`).Scan(&left))
			return left == 0
		})
	}, cleaner)
	_, err = rest()
	refusedAs(t, query.ErrCursorInvalid, err)
	refusedWith(t, "rollback_expired", y.rollBack(r))
	y.checkAmounts("what is left", map[uuid.UUID]string{tenant: "2026-07:20 2026-06:20 2026-05:20 "})
}

// A list of all tenants' figures stays with the generations of its first page, of each tenant.
func TestP5_PagesOfAPeriodStayInTheirGenerations(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	all := y.tenants(3)
	slices.SortFunc(all, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	for _, tenant := range all {
		y.append(usageEvent(tenant, "p-"+tenant.String(), "calls", 10, may))
	}
	y.settle()
	old := y.built(commands.StartRebuild{TenantID: all[1]})
	y.must(y.promote(old))
	first, err := y.reads.OfPeriod(t.Context(), operator, usage.PeriodQuery{PeriodKey: "2026-05", Limit: 1})
	y.must(err)
	if len(first.Data) != 1 || first.Data[0].TenantID != all[0] || first.AsOf != nil {
		t.Fatalf("the first page is %+v", first)
	}
	rest := func() (list []string, err error) {
		return y.ofPeriod(usage.PeriodQuery{PeriodKey: "2026-05", Limit: 1, After: first.Next})
	}
	want := []string{all[1].String() + " calls 20", all[2].String() + " calls 10"}
	whole := y.built(commands.StartRebuild{})
	for _, flip := range []func(domain.Rebuild) error{y.promote, y.rollBack, y.promote} {
		y.must(flip(whole))
		if got, err := rest(); err != nil || !slices.Equal(got, want) {
			t.Errorf("the other pages have %q, %v, want %q", got, err, want)
		}
	}
	cleaner := y.rebuilder(0)
	cleaner.Keep = time.Nanosecond
	y.whileRebuilding(func() {
		y.until(func() bool {
			var left int
			y.must(y.pool.QueryRow(t.Context(), `SELECT count(*) FROM usage_aggregates WHERE generation = ANY ($1)`, []int{1, old.Generation}).Scan(&left))
			return left == 0
		})
	}, cleaner)
	_, err = rest()
	refusedAs(t, query.ErrCursorInvalid, err)
	for _, forged := range []string{"x", "1|2|3", "99|" + all[0].String() + "|calls|" + all[0].String(), "1|" + all[0].String() + "|\x00|" + all[0].String(), "1|x|calls|" + all[0].String()} {
		_, err := y.reads.OfPeriod(t.Context(), operator, usage.PeriodQuery{PeriodKey: "2026-05", After: forged})
		refusedAs(t, query.ErrCursorInvalid, err)
	}
}

func TestARebuildIsRefusedBesideAnotherOfTheSameFigures(t *testing.T) {
	y := newRebuildFixture(t)
	tenants := y.tenants(2)
	y.settle()
	start := func(in commands.StartRebuild) error {
		in.Reason = "test"
		_, err := y.rebuilds.Start(t.Context(), commands.Request{By: operatorKey}, in)
		return err
	}
	first := y.start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenants[0]})
	for code, in := range map[string]commands.StartRebuild{
		"rebuild_in_progress":  {Projection: projections.ProjectionUsage},
		"projection_not_found": {Projection: "usage"},
		"tenant_not_found":     {Projection: projections.ProjectionUsage, TenantID: newID()},
		"scope_invalid":        {Projection: projections.ProjectionDeadLetters, PeriodKey: "2026-05"},
		"period_key_invalid":   {Projection: projections.ProjectionUsage, PeriodKey: "2026-13"},
		"workers_invalid":      {Projection: projections.ProjectionUsage, Workers: 33},
	} {
		refusedWith(t, code, start(in))
	}
	y.must(start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenants[1]}))
	y.must(start(commands.StartRebuild{Projection: projections.ProjectionDeadLetters}))
	refusedWith(t, "rebuild_not_ready", y.promote(first))
	refusedWith(t, "rebuild_not_promoted", y.rollBack(first))
	_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, first.ID, "no more")
	y.must(err)
	refusedWith(t, "rebuild_not_ready", y.promote(first))
	y.must(start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: tenants[0]}))
}

// A rebuild publishes no usage: it appends only its request and state changes.
func TestARebuildPublishesNothing(t *testing.T) {
	y := newRebuildFixture(t)
	y.recordMixedUsage(y.tenants(3), 0, 60)
	y.settle()
	topics := func() (all []int64) {
		y.must(y.pool.QueryRow(t.Context(), `SELECT array_agg(n ORDER BY topic) FROM (
			SELECT t AS topic, (SELECT count(*) FROM event_log_rows l WHERE l.topic = t) AS n FROM generate_series(1, 9) t) c`).Scan(&all))
		return all
	}
	before := topics()
	r := y.built(commands.StartRebuild{})
	y.must(y.promote(r))
	after := topics()
	for topic := range before {
		added := after[topic] - before[topic]
		want := int64(0)
		switch events.Topic(topic + 1) {
		case events.TopicCommands:
			want = 1 // the request
		case events.TopicBilling:
			want = 2 // that it is ready, and promoted
		}
		if added != want {
			t.Errorf("topic %s has %d more events, want %d", events.Topic(topic+1).Name(), added, want)
		}
	}
}

var errCannot = errors.New("this version cannot")

// If the new fold fails on an event that the live one accepted, the rebuild fails with
// the position; a later failure breaks its generation, and the live one continues.
func TestARebuildThatCannotFoldFails(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions("usage_aggregates/brittle", func(e *events.Envelope) (usage.Key, usage.Delta, error) {
		key, delta, err := usage.FoldV1(e)
		if err == nil && key.Feature == "tokens" {
			err = errCannot
		}
		return key, delta, err
	})
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "one", "calls", 1, may))
	y.settle()
	aside := y.built(commands.StartRebuild{})
	y.append(usageEvent(tenant, "two", "tokens", 2, may))
	y.settle()
	y.checkAmounts("the live one", map[uuid.UUID]string{tenant: "2026-05:1 lifetime:2 "})
	refusedWith(t, "generation_broken", y.promote(aside))
	_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, aside.ID, "broken")
	y.must(err)
	late := y.start(commands.StartRebuild{Projection: projections.ProjectionUsage})
	y.whileRebuilding(func() { y.until(func() bool { return y.state(late) == domain.RebuildFailed }) }, y.rebuilder(5))
	now, err := y.rebuildStore().Rebuild(t.Context(), late.ID)
	y.must(err)
	if now.Failure == "" {
		t.Error("it does not say why")
	}
	t.Log(now.Failure)
	refusedWith(t, "rebuild_not_ready", y.promote(late))
}

// P2: an event parked by the live fold counts in no generation until its retry, even
// if the new fold accepts it; then it counts once in each.
func TestP2_ParkedEventsCountOnceInEachGeneration(t *testing.T) {
	y := newFlakyFixture(t)
	y.folds.Usage = y.folds.Usage.With("usage_aggregates/fixed", usage.FoldV1)
	y.deploy()
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "before", "broken", 5, may))
	y.settle()
	r := y.built(commands.StartRebuild{})
	y.append(usageEvent(tenant, "beside", "broken", 7, may))
	y.settle()
	y.must(y.promote(r))
	y.checkAmounts("parked", map[uuid.UUID]string{tenant: ""})
	y.append(usageEvent(tenant, "after", "broken", 1, may)) // the live fold accepts it
	y.settle()
	y.checkAmounts("taken", map[uuid.UUID]string{tenant: "2026:1 "})
	y.retryBroken(10)
	y.settle()
	y.checkAmounts("retried", map[uuid.UUID]string{tenant: "2026:13 "})
	// The old one failed on an event that the new one accepted: rollback is impossible.
	refusedWith(t, "rollback_expired", y.rollBack(r))
}
