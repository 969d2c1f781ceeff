package projections_test

import (
	"context"
	"encoding/json"
	"maps"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// knownFigures holds the live figures when no event was in flight.
type knownFigures struct {
	at      events.Position
	time    time.Time
	figures []usage.Aggregate
}

func (d *history) knownNow() knownFigures {
	d.Helper()
	page, err := d.reads.Aggregates(context.Background(), tenantViewer(d.tenant), usage.AggregateQuery{TenantID: d.tenant, Limit: 1000})
	d.must(err)
	k := knownFigures{at: *page.AsOf, figures: page.Data}
	time.Sleep(2 * time.Microsecond) // times of recording are in microseconds
	k.time = time.Now()
	time.Sleep(2 * time.Microsecond)
	return k
}

// asOf reads every page of the figures at a moment.
func (d *history) AsOf(at usage.AsOf, limit int) (all []usage.Aggregate) {
	d.Helper()
	q := usage.AggregateQuery{TenantID: d.tenant, Limit: limit}
	for {
		page, err := d.reads.AggregatesAsOf(context.Background(), tenantViewer(d.tenant), q, at)
		d.must(err)
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
	s := newPipelineFixture(t)
	s.reads.setNow(time.Now)
	rapid.Check(t, func(rt *rapid.T) {
		d := newHistory(s)
		d.TB = t
		var before []knownFigures
		for range rapid.IntRange(1, 5).Draw(rt, "rests") {
			for range rapid.IntRange(1, 8).Draw(rt, "steps") {
				d.addStep(rt)
			}
			d.Rest()
			before = append(before, d.knownNow())
		}
		for i, k := range before {
			limit := rapid.IntRange(1, 4).Draw(rt, "limit")
			if got := d.AsOf(usage.AsOf{Position: &k.at}, limit); !equalFigures(got, k.figures) {
				rt.Fatalf("rest %d, at %s: %+v instead of %+v", i, k.at, got, k.figures)
			}
			if got := d.AsOf(usage.AsOf{Time: k.time}, limit); !equalFigures(got, k.figures) {
				rt.Fatalf("rest %d, at %s: %+v instead of %+v", i, k.time, got, k.figures)
			}
		}
		own, _ := d.readAll()
		for range 3 {
			at := events.Position{Partition: d.partition, Number: rapid.Int64Range(1, own[len(own)-1].Position.Number).Draw(rt, "at")}
			if got, want := d.AsOf(usage.AsOf{Position: &at}, 1000), countedUpTo(own, at.Number); !reflect.DeepEqual(amounts(got), want) {
				rt.Fatalf("at %s: %v instead of %v", at, amounts(got), want)
			}
			d.checkEachFigureAsOf(rt, at, countedUpTo(own, at.Number))
		}
	})
}

// checkEachFigureAsOf reads the figures of a moment one by one, by feature and period.
func (d *history) checkEachFigureAsOf(rt *rapid.T, at events.Position, want map[string]string) {
	got := map[string]string{}
	for key := range want {
		names := strings.Fields(key)
		page, err := d.reads.AggregatesAsOf(context.Background(), tenantViewer(d.tenant),
			usage.AggregateQuery{TenantID: d.tenant, Feature: names[0], PeriodKey: names[1], Limit: 10}, usage.AsOf{Position: &at})
		d.must(err)
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
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "e", "calls", 5, may))[0]
	ask := func(p usage.AsOf) error {
		return second(s.reads.AggregatesAsOf(t.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 10}, p))
	}
	refusedAs(t, query.ErrProjectionBehind, ask(usage.AsOf{Position: &at}))
	beyond := events.Position{Partition: at.Partition, Number: at.Number + 1}
	refusedAs(t, query.ErrPositionInvalid, ask(usage.AsOf{Position: &beyond}))
	elsewhere := events.Position{Partition: (at.Partition + 1) % events.Partitions}
	refusedAs(t, query.ErrPositionInvalid, ask(usage.AsOf{Position: &elsewhere}))
	refusedAs(t, query.ErrPositionInvalid, ask(usage.AsOf{Time: s.now.Add(time.Hour)}))
	for _, cursor := range []string{"x", "1|", "1|2026-05|calls", "-1|2026-05|calls|" + tenant.String()} {
		_, err := s.reads.AggregatesAsOf(t.Context(), operator, usage.AggregateQuery{TenantID: tenant, After: cursor}, usage.AsOf{Position: &at})
		refusedAs(t, query.ErrCursorInvalid, err)
	}
	s.settle()
	s.must(ask(usage.AsOf{Position: &at}))
}

// Figures at a moment include events recorded at it and exclude later ones.
func TestFiguresAsOfATimeIncludeEventsOfThatTime(t *testing.T) {
	s := newPipelineFixture(t)
	s.reads.setNow(time.Now)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "e", "calls", 5, may))[0]
	s.append(usageEvent(tenant, "later", "calls", 7, may))
	s.settle()
	var recorded time.Time
	s.must(s.pool.QueryRow(t.Context(), `SELECT recorded_at FROM event_log_rows WHERE partition = $1 AND position = $2`, at.Partition, at.Number).Scan(&recorded))
	for moment, want := range map[time.Time]string{recorded: "5", recorded.Add(-time.Microsecond): ""} {
		page, err := s.reads.AggregatesAsOf(t.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 10}, usage.AsOf{Time: moment})
		s.must(err)
		got := ""
		for _, a := range page.Data {
			got += a.Amount.String()
		}
		if got != want {
			t.Errorf("%s from its recording an event counts %q, want %q", moment.Sub(recorded), got, want)
		}
	}
}
