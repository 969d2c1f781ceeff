package usage_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// P12: a figure as of a position is of the generation that readers see: after a promotion its
// running totals are those that the rebuild wrote, after a rollback the earlier ones.
func TestP12_FiguresOfThePastAreOfTheLiveGeneration(t *testing.T) {
	y := NewRebuilds(t)
	y.Versions(Doubled, FoldDoubled)
	tenants := y.Tenants(2)
	amount := map[uuid.UUID]map[int64]int64{tenants[0]: {}, tenants[1]: {}}
	var total [2]int64
	for i := range tier.Draws(t, 16, 40) {
		which := i % 2
		y.Append(Usage(tenants[which], fmt.Sprint("e", i), "calls", int64(i+1), May))
		total[which] += int64(i + 1)
		amount[tenants[which]][y.Head(tenants[which]).Number] = total[which]
		if i%7 == 0 {
			y.Settle()
		}
	}
	y.Settle()
	checkPast(y, "before", amount, 1)
	totalsWritten(y, 1)
	r := y.Built(repair.StartRebuild{})
	checkPast(y, "rebuilt beside it", amount, 1)
	totalsWritten(y, r.Generation)
	y.Must(y.Promote(r))
	checkPast(y, "promoted", amount, 2)
	y.Must(y.RollBack(r))
	checkPast(y, "rolled back", amount, 1)
}

// checkPast reads the figure at each position at which its amount is known, times the fold's factor.
func checkPast(y *Rebuilds, when string, known map[uuid.UUID]map[int64]int64, factor int64) {
	y.Helper()
	for tenant, amounts := range known {
		for number, amount := range amounts {
			at := events.Position{Partition: events.PartitionOf(tenant), Number: number}
			for _, feature := range []string{"calls", ""} {
				page, err := y.Reads.AggregatesAsOf(y.Context(), TenantViewer(tenant),
					usage.AggregateQuery{TenantID: tenant, Feature: feature, Limit: 10}, usage.AsOf{Position: &at})
				if err != nil || len(page.Data) != 1 || page.Data[0].Amount.String() != fmt.Sprint(amount*factor) {
					y.Errorf("%s, as of %s: %+v %v, want %d", when, at, page.Data, err, amount*factor)
				}
			}
		}
	}
}

// totalsWritten fails if a generation has no running totals before the last position.
func totalsWritten(y *Rebuilds, generation int) {
	y.Helper()
	var n int
	y.Must(y.Pool.QueryRow(y.Context(), `SELECT count(*) FROM usage_running_totals WHERE generation = $1`, generation).Scan(&n))
	if n < 2 {
		y.Errorf("generation %d has %d running totals", generation, n)
	}
}

// knownFigures holds the live figures when no event was in flight.
type knownFigures struct {
	at      events.Position
	time    time.Time
	figures []usage.Aggregate
}

func knownNow(d *History) knownFigures {
	d.Helper()
	page, err := d.Reads.Aggregates(context.Background(), TenantViewer(d.Tenant), usage.AggregateQuery{TenantID: d.Tenant, Limit: 1000})
	d.Must(err)
	k := knownFigures{at: *page.AsOf, figures: page.Data}
	time.Sleep(2 * time.Microsecond) // times of recording are in microseconds
	k.time = time.Now()
	time.Sleep(2 * time.Microsecond)
	return k
}

// asOf reads every page of the figures at a moment.
func figuresAsOf(d *History, at usage.AsOf, limit int) (all []usage.Aggregate) {
	d.Helper()
	q := usage.AggregateQuery{TenantID: d.Tenant, Limit: limit}
	for {
		page, err := d.Reads.AggregatesAsOf(context.Background(), TenantViewer(d.Tenant), q, at)
		d.Must(err)
		all = append(all, page.Data...)
		if q.After = page.Next; q.After == "" {
			return all
		}
	}
}

// P12: figures as of a position equal the figures that were live once all events
// up to it were counted, whatever happened later; as of the current position they
// equal the live ones.
func TestP12_FiguresAsOfAPositionDoNotChange(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewPipeline(t)
	s.Reads.SetNow(time.Now)
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(s)
		d.TB = t
		var before []knownFigures
		for range rapid.IntRange(1, 5).Draw(rt, "rests") {
			for range rapid.IntRange(1, 8).Draw(rt, "steps") {
				d.AddStep(rt)
			}
			d.Rest()
			before = append(before, knownNow(d))
		}
		for i, k := range before {
			limit := rapid.IntRange(1, 4).Draw(rt, "limit")
			if got := figuresAsOf(d, usage.AsOf{Position: &k.at}, limit); !equalFigures(got, k.figures) {
				rt.Fatalf("rest %d, at %s: %+v instead of %+v", i, k.at, got, k.figures)
			}
			if got := figuresAsOf(d, usage.AsOf{Time: k.time}, limit); !equalFigures(got, k.figures) {
				rt.Fatalf("rest %d, at %s: %+v instead of %+v", i, k.time, got, k.figures)
			}
		}
		own, _ := d.ReadAll()
		for range 3 {
			at := events.Position{Partition: d.Partition, Number: rapid.Int64Range(1, own[len(own)-1].Position.Number).Draw(rt, "at")}
			if got, want := figuresAsOf(d, usage.AsOf{Position: &at}, 1000), countedUpTo(own, at.Number); !reflect.DeepEqual(amounts(got),
				want) {
				rt.Fatalf("at %s: %v instead of %v", at, amounts(got), want)
			}
			checkEachFigureAsOf(d, rt, at, countedUpTo(own, at.Number))
		}
	})
}

// checkEachFigureAsOf reads the figures of a moment one by one, by feature and period.
func checkEachFigureAsOf(d *History, rt *rapid.T, at events.Position, want map[string]string) {
	got := map[string]string{}
	for key := range want {
		names := strings.Fields(key)
		page, err := d.Reads.AggregatesAsOf(context.Background(), TenantViewer(d.Tenant),
			usage.AggregateQuery{TenantID: d.Tenant, Feature: names[0], PeriodKey: names[1], Limit: 10}, usage.AsOf{Position: &at})
		d.Must(err)
		maps.Copy(got, amounts(page.Data))
	}
	if !reflect.DeepEqual(got, want) {
		rt.Fatalf("one by one at %s: %v instead of %v", at, got, want)
	}
}

// countedUpTo is the definition, by brute force: of each verdict that did not fail,
// the event that caused it.
func countedUpTo(log []events.Envelope, at int64) map[string]string {
	byID, failed := map[uuid.UUID]*events.Envelope{}, map[int64]bool{}
	for i := range log {
		byID[log[i].EventID] = &log[i]
		var f events.Failed
		if log[i].Subject == events.PublishFailed || log[i].Subject == events.AggregationFailed {
			_ = json.Unmarshal(log[i].Payload, &f)
			failed[f.SourcePosition] = true
		}
	}
	sums := map[string]*big.Int{}
	for i := range log {
		e := &log[i]
		cause := e
		switch e.Subject {
		case events.UsageValidated:
			cause = byID[e.CausationID]
		case events.Reaggregated:
		default:
			continue
		}
		v, _ := codec.VerdictOf(e)
		key := v.Feature + " " + v.PeriodKey + " " + v.ValidatedSubscriptionID.String()
		if cause.Position.Number <= at && !failed[e.Position.Number] {
			if sums[key] == nil {
				sums[key] = new(big.Int)
			}
			sums[key].Add(sums[key], big.NewInt(v.Amount))
		}
	}
	texts := map[string]string{}
	for key, sum := range sums {
		texts[key] = sum.String()
	}
	return texts
}

func amounts(figures []usage.Aggregate) map[string]string {
	texts := map[string]string{}
	for _, a := range figures {
		texts[a.Feature+" "+a.PeriodKey+" "+a.SubscriptionID.String()] = a.Amount.String()
	}
	return texts
}

func equalFigures(a, b []usage.Aggregate) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}

func TestAsOfRefusesWhatIsNotKnownYet(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	at := s.Append(Usage(tenant, "e", "calls", 5, May))[0]
	ask := func(p usage.AsOf) error {
		return Second(s.Reads.AggregatesAsOf(t.Context(), TenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 10}, p))
	}
	RefusedAs(t, query.ErrProjectionBehind, ask(usage.AsOf{Position: &at}))
	beyond := events.Position{Partition: at.Partition, Number: at.Number + 1}
	RefusedAs(t, query.ErrPositionInvalid, ask(usage.AsOf{Position: &beyond}))
	elsewhere := events.Position{Partition: (at.Partition + 1) % events.Partitions}
	RefusedAs(t, query.ErrPositionInvalid, ask(usage.AsOf{Position: &elsewhere}))
	RefusedAs(t, query.ErrPositionInvalid, ask(usage.AsOf{Time: s.Now.Add(time.Hour)}))
	for _, cursor := range []string{"x", "1|", "1|2026-05|calls", "-1|2026-05|calls|" + tenant.String()} {
		_, err := s.Reads.AggregatesAsOf(t.Context(), Operator, usage.AggregateQuery{TenantID: tenant, After: cursor},
			usage.AsOf{Position: &at})
		RefusedAs(t, query.ErrCursorInvalid, err)
	}
	s.Settle()
	s.Must(ask(usage.AsOf{Position: &at}))
}

// Figures at a moment include events recorded at it and exclude later ones.
func TestFiguresAsOfATimeIncludeEventsOfThatTime(t *testing.T) {
	s := NewPipeline(t)
	s.Reads.SetNow(time.Now)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	at := s.Append(Usage(tenant, "e", "calls", 5, May))[0]
	s.Append(Usage(tenant, "later", "calls", 7, May))
	s.Settle()
	var recorded time.Time
	s.Must(s.Pool.QueryRow(t.Context(), `SELECT recorded_at FROM event_log_rows WHERE partition = $1 AND position = $2`, at.Partition,
		at.Number).Scan(&recorded))
	for moment, want := range map[time.Time]string{recorded: "5", recorded.Add(-time.Microsecond): ""} {
		page, err := s.Reads.AggregatesAsOf(t.Context(), TenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 10},
			usage.AsOf{Time: moment})
		s.Must(err)
		got := ""
		for _, a := range page.Data {
			got += a.Amount.String()
		}
		if got != want {
			t.Errorf("%s from its recording an event counts %q, want %q", moment.Sub(recorded), got, want)
		}
	}
}
