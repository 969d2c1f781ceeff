package rebuild_test

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
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// amountsOf returns a tenant's visible amounts, as "period:amount …", newest period first.
func amountsOf(y *Rebuilds, tenant uuid.UUID) (seen string) {
	y.Helper()
	page, err := y.Reads.Aggregates(context.Background(), TenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 100})
	y.Must(err)
	for _, a := range page.Data {
		seen += a.PeriodKey + ":" + a.Amount.String() + " "
	}
	return seen
}

func checkAmounts(y *Rebuilds, when string, wanted map[uuid.UUID]string) {
	y.Helper()
	for tenant, want := range wanted {
		if got := amountsOf(y, tenant); got != want {
			y.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	checkPeriods(y, when, wanted)
	identity, err := y.Reads.Identity(context.Background())
	y.Must(err)
	if !identity.Holds {
		y.Errorf("%s: %+v", when, identity.Total)
	}
}

// checkPeriods compares the figures of all tenants, read period by period in pages of one, with the tenants' own.
func checkPeriods(y *Rebuilds, when string, wanted map[uuid.UUID]string) {
	y.Helper()
	want := map[string][]string{}
	for _, tenant := range slices.SortedFunc(maps.Keys(wanted), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		for figure := range strings.FieldsSeq(wanted[tenant]) {
			period, amount, _ := strings.Cut(figure, ":")
			want[period] = append(want[period], tenant.String()+" "+amount)
		}
	}
	for period := range want {
		all, _ := pagesOfPeriod(y, usage.PeriodQuery{PeriodKey: period, Limit: 1})
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
			if got, _ := pagesOfPeriod(y, usage.PeriodQuery{PeriodKey: period, Feature: feature, Limit: 1}); !slices.Equal(got, whole) {
				y.Errorf("%s: figures of %s in %s: %q, want %q", when, feature, period, got, whole)
			}
		}
	}
}

// pagesOfPeriod reads the pages of a list from q.After on, as "tenant feature amount". It ends with the first
// error.
func pagesOfPeriod(y *Rebuilds, q usage.PeriodQuery) (list []string, err error) {
	for {
		page, err := y.Reads.OfPeriod(context.Background(), Operator, q)
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
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	all := y.Tenants(2)
	a, b := all[0], all[1]
	for i, tenant := range []uuid.UUID{a, a, b, b} {
		y.Append(Usage(tenant, fmt.Sprint("s", i), "calls", 10, May.AddDate(0, i%2, 0)))
	}
	y.Settle()
	plain := map[uuid.UUID]string{a: "2026-06:10 2026-05:10 ", b: "2026-06:10 2026-05:10 "}
	checkAmounts(y, "before", plain)

	ofTenant := y.Built(repair.StartRebuild{TenantID: a})
	var rows, strangers int
	y.Must(
		y.Pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE tenant_id <> $2) FROM usage_aggregates WHERE generation = $1`,
			ofTenant.Generation, a).
			Scan(&rows, &strangers),
	)
	if rows != 2 || strangers != 0 {
		t.Errorf("the generation of one tenant has %d rows, %d of others", rows, strangers)
	}
	checkAmounts(y, "while it waits", plain)
	y.Must(y.Promote(ofTenant))
	checkAmounts(y, "one tenant", map[uuid.UUID]string{a: "2026-06:20 2026-05:20 ", b: "2026-06:10 2026-05:10 "})

	ofPeriod := y.Built(repair.StartRebuild{PeriodKey: "2026-05"})
	y.Must(y.Promote(ofPeriod))
	checkAmounts(y, "and one period", map[uuid.UUID]string{a: "2026-06:20 2026-05:20 ", b: "2026-06:10 2026-05:20 "})

	y.Append(Usage(a, "later", "calls", 1, May), Usage(b, "later", "calls", 1, May))
	y.Settle()
	checkAmounts(y, "all are fed", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:10 2026-05:22 "})

	RefusedWith(t, "rebuild_superseded", y.RollBack(ofTenant))
	y.Must(y.RollBack(ofPeriod))
	checkAmounts(y, "the period back", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:10 2026-05:11 "})
	y.Must(y.RollBack(ofTenant))
	checkAmounts(y, "the tenant back", map[uuid.UUID]string{a: "2026-06:10 2026-05:11 ", b: "2026-06:10 2026-05:11 "})

	whole := y.Built(repair.StartRebuild{})
	y.Must(y.Promote(whole))
	checkAmounts(y, "all", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:20 2026-05:22 "})
	y.Must(y.Promote(ofTenant)) // it was kept and fed
	checkAmounts(y, "again", map[uuid.UUID]string{a: "2026-06:20 2026-05:22 ", b: "2026-06:20 2026-05:22 "})
}

// A cursor stays with the generations of its list's first page.
func TestP5_PagesStayInTheirGeneration(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	tenant := y.Tenants(1)[0]
	for i := range 3 {
		y.Append(Usage(tenant, fmt.Sprint("p", i), "calls", 10, May.AddDate(0, i, 0)))
	}
	y.Settle()
	r := y.Built(repair.StartRebuild{})
	first, err := y.Reads.Aggregates(t.Context(), TenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 1})
	y.Must(err)
	rest := func() (string, error) {
		page, err := y.Reads.Aggregates(
			t.Context(),
			TenantViewer(tenant),
			usage.AggregateQuery{TenantID: tenant, Limit: 100, After: first.Next},
		)
		if err != nil {
			return "", err
		}
		return page.Data[0].Amount.String() + " " + page.Data[1].Amount.String(), nil
	}
	for _, flip := range []func(domain.Rebuild) error{y.Promote, y.RollBack, y.Promote} {
		y.Must(flip(r))
		if got, err := rest(); err != nil || got != "10 10" {
			t.Errorf("the second page has %q, %v", got, err)
		}
	}
	cleaner := y.Rebuilder(0)
	cleaner.Keep = time.Nanosecond
	y.WhileRebuilding(func() {
		y.Until(func() bool {
			var left int
			y.Must(y.Pool.QueryRow(t.Context(), `SELECT count(*) FROM usage_aggregates WHERE generation = 1`).Scan(&left))
			return left == 0
		})
	}, cleaner)
	_, err = rest()
	RefusedAs(t, query.ErrCursorInvalid, err)
	RefusedWith(t, "rollback_expired", y.RollBack(r))
	checkAmounts(y, "what is left", map[uuid.UUID]string{tenant: "2026-07:20 2026-06:20 2026-05:20 "})
}

// A list of all tenants' figures stays with the generations of its first page, of each tenant.
func TestP5_PagesOfAPeriodStayInTheirGenerations(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	all := y.Tenants(3)
	slices.SortFunc(all, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	for _, tenant := range all {
		y.Append(Usage(tenant, "p-"+tenant.String(), "calls", 10, May))
	}
	y.Settle()
	old := y.Built(repair.StartRebuild{TenantID: all[1]})
	y.Must(y.Promote(old))
	first, err := y.Reads.OfPeriod(t.Context(), Operator, usage.PeriodQuery{PeriodKey: "2026-05", Limit: 1})
	y.Must(err)
	if len(first.Data) != 1 || first.Data[0].TenantID != all[0] || first.AsOf != nil {
		t.Fatalf("the first page is %+v", first)
	}
	rest := func() (list []string, err error) {
		return pagesOfPeriod(y, usage.PeriodQuery{PeriodKey: "2026-05", Limit: 1, After: first.Next})
	}
	want := []string{all[1].String() + " calls 20", all[2].String() + " calls 10"}
	whole := y.Built(repair.StartRebuild{})
	for _, flip := range []func(domain.Rebuild) error{y.Promote, y.RollBack, y.Promote} {
		y.Must(flip(whole))
		if got, err := rest(); err != nil || !slices.Equal(got, want) {
			t.Errorf("the other pages have %q, %v, want %q", got, err, want)
		}
	}
	cleaner := y.Rebuilder(0)
	cleaner.Keep = time.Nanosecond
	y.WhileRebuilding(func() {
		y.Until(func() bool {
			var left int
			y.Must(
				y.Pool.QueryRow(t.Context(), `SELECT count(*) FROM usage_aggregates WHERE generation = ANY ($1)`, []int{1, old.Generation}).
					Scan(&left),
			)
			return left == 0
		})
	}, cleaner)
	_, err = rest()
	RefusedAs(t, query.ErrCursorInvalid, err)
	for _, forged := range []string{"x", "1|2|3", "99|" + all[0].String() + "|calls|" + all[0].String(),
		"1|" + all[0].String() + "|\x00|" + all[0].String(), "1|x|calls|" + all[0].String()} {
		_, err := y.Reads.OfPeriod(t.Context(), Operator, usage.PeriodQuery{PeriodKey: "2026-05", After: forged})
		RefusedAs(t, query.ErrCursorInvalid, err)
	}
}

// A rebuild publishes no usage: it appends only its request and state changes.
func TestARebuildPublishesNothing(t *testing.T) {
	y := NewRebuilds(t)
	y.RecordMixedUsage(y.Tenants(3), 0, 60)
	y.Settle()
	topics := func() (all []int64) {
		y.Must(y.Pool.QueryRow(t.Context(), `SELECT array_agg(n ORDER BY topic) FROM (
			SELECT t AS topic, (SELECT count(*) FROM event_log_rows l WHERE l.topic = t) AS n FROM generate_series(1, 9) t) c`).Scan(&all))
		return all
	}
	before := topics()
	r := y.Built(repair.StartRebuild{})
	y.Must(y.Promote(r))
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
	y := NewRebuilds(t)
	y.Versions("usage_aggregates/brittle", func(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
		key, delta, err := usage.FoldV1(e, v)
		if err == nil && key.Feature == "tokens" {
			err = errCannot
		}
		return key, delta, err
	})
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "one", "calls", 1, May))
	y.Settle()
	aside := y.Built(repair.StartRebuild{})
	y.Append(Usage(tenant, "two", "tokens", 2, May))
	y.Settle()
	checkAmounts(y, "the live one", map[uuid.UUID]string{tenant: "2026-05:1 lifetime:2 "})
	RefusedWith(t, "generation_broken", y.Promote(aside))
	_, err := y.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, aside.ID, "broken")
	y.Must(err)
	late := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage})
	y.WhileRebuilding(func() { y.Until(func() bool { return y.State(late) == domain.RebuildFailed }) }, y.Rebuilder(5))
	now, err := y.RebuildStore().Rebuild(t.Context(), late.ID)
	y.Must(err)
	if now.Failure == "" {
		t.Error("it does not say why")
	}
	t.Log(now.Failure)
	RefusedWith(t, "rebuild_not_ready", y.Promote(late))
}

// P2: an event parked by the live fold counts in no generation until its retry, even
// if the new fold accepts it; then it counts once in each.
func TestP2_ParkedEventsCountOnceInEachGeneration(t *testing.T) {
	y := newFlakyFixture(t)
	y.Folds.Usage = y.Folds.Usage.With("usage_aggregates/fixed", usage.FoldV1)
	y.Deploy()
	tenant := y.Tenants(1)[0]
	y.Append(Usage(tenant, "before", "broken", 5, May))
	y.Settle()
	r := y.Built(repair.StartRebuild{})
	y.Append(Usage(tenant, "beside", "broken", 7, May))
	y.Settle()
	y.Must(y.Promote(r))
	checkAmounts(y, "parked", map[uuid.UUID]string{tenant: ""})
	y.Append(Usage(tenant, "after", "broken", 1, May)) // the live fold accepts it
	y.Settle()
	checkAmounts(y, "taken", map[uuid.UUID]string{tenant: "2026:1 "})
	y.RetryBroken(10)
	y.Settle()
	checkAmounts(y, "retried", map[uuid.UUID]string{tenant: "2026:13 "})
	// The old one failed on an event that the new one accepted: rollback is impossible.
	RefusedWith(t, "rollback_expired", y.RollBack(r))
}
