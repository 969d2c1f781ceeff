package usage_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// checkExplanation walks through an explanation and holds it against a figure.
func checkExplanation(d *History, rt *rapid.T, a usage.Aggregate, asOf *usage.AsOf, between func()) {
	q := usage.ExplainQuery{TenantID: d.Tenant, Feature: a.Feature, PeriodKey: a.PeriodKey, SubscriptionID: a.SubscriptionID, AsOf: asOf,
		Limit: rapid.IntRange(1, 3).Draw(rt, "limit")}
	if asOf != nil {
		page, err := d.Reads.AggregatesAsOf(
			context.Background(),
			TenantViewer(d.Tenant),
			usage.AggregateQuery{TenantID: d.Tenant, Feature: a.Feature, PeriodKey: a.PeriodKey, Limit: 10},
			*asOf,
		)
		d.Must(err)
		if !slices.ContainsFunc(page.Data, func(b usage.Aggregate) bool { return reflect.DeepEqual(a, b) }) {
			rt.Fatalf("of its feature and period alone: %+v instead of %+v", page.Data, a)
		}
	}
	sum, count, last := new(big.Int), int64(0), int64(0)
	for {
		e, err := d.Reads.Explain(context.Background(), TenantViewer(d.Tenant), q)
		d.Must(err)
		if !e.Adds || e.Total != a.Amount || e.EventCount != a.EventCount {
			rt.Fatalf("of %+v: adds %v, total %s of %d", a, e.Adds, e.Total, e.EventCount)
		}
		for _, u := range e.Data {
			count += u.Count
			if sum.Add(sum, big.NewInt(u.Amount)); sum.String() != u.RunningTotal.String() || u.VerdictPosition.Number <= last ||
				u.RecordedAt.IsZero() ||
				u.EventID == "" {
				rt.Fatalf("%+v after %d, sum %s", u, last, sum)
			}
			last = u.VerdictPosition.Number
		}
		if q.After = e.Next; q.After == "" {
			break
		}
		between()
	}
	if sum.String() != a.Amount.String() || count != a.EventCount {
		rt.Fatalf("the events add up to %s of %d, the figure is %+v", sum, count, a)
	}
}

// P12: at every moment, whatever is in flight, the events of an explanation add up
// to the live figure, even if more are counted between two pages.
func TestP12_ExplanationsAddUp(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewPipeline(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(s)
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			d.AddStep(rt)
		}
		for n := range knownNow(d).figures {
			// Read again: more may have been counted between another figure's pages.
			checkExplanation(d, rt, knownNow(d).figures[n], nil, func() { d.AddStep(rt) })
		}
		d.Rest()
		k := knownNow(d)
		for _, a := range k.figures {
			checkExplanation(d, rt, a, &usage.AsOf{Position: &k.at}, func() { d.AddStep(rt) })
		}
	})
}

// An explanation shows whether a figure equals the sum of its events.
func TestP12_AnExplanationReportsAWrongSum(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	sub := s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	s.Append(Usage(tenant, "e", "calls", 5, May))
	s.Settle()
	q := usage.ExplainQuery{TenantID: tenant, Feature: "calls", PeriodKey: "2026-05", SubscriptionID: sub.ID, Limit: 10}
	for _, c := range []struct {
		change string
		adds   bool
	}{{`amount = 5`, true}, {`amount = 6`, false}, {`amount = 5, event_count = 2`, false}} {
		s.Must(Second(s.Pool.Exec(t.Context(), `UPDATE usage_aggregates SET `+c.change)))
		e, err := s.Reads.Explain(t.Context(), Operator, q)
		if err != nil || e.Adds != c.adds || len(e.Data) != 1 {
			t.Errorf("%s: %+v %v", c.change, e, err)
		}
	}
}

// A page may count more events than the figure, which later retractions take back.
func TestP12_ExplanationsOfRetractionsAddUp(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	s.Append(Usage(tenant, "a", "calls", 5, May), Usage(tenant, "b", "calls", 7, May), Usage(tenant, "c", "calls", 9, May))
	s.Append(Correction(tenant, "no b", "calls", "b", -1).Pending, Correction(tenant, "no c", "calls", "c", -1).Pending)
	s.Settle()
	q := usage.ExplainQuery{TenantID: tenant, Feature: "calls", PeriodKey: "2026-05", Limit: 1}
	for n, total := range []string{"5", "12", "21", "14", "5"} {
		e, err := s.Reads.Explain(t.Context(), Operator, q)
		s.Must(err)
		if !e.Adds || e.EventCount != 1 || len(e.Data) != 1 || e.Data[0].RunningTotal.String() != total || (e.Next == "") != (n == 4) {
			t.Fatalf("page %d: %+v, want the total %s", n+1, e, total)
		}
		q.After = e.Next
	}
}

func TestP12_ExcludedEventsAreListedWithTheReason(t *testing.T) {
	s := NewPipeline(t)
	s.Payloads.Allow() // one has the amount 0
	d := NewHistory(s)
	june := May.AddDate(0, 1, 0)
	s.Append(Usage(d.Tenant, "good", "panics", 0, May), Usage(d.Tenant, "unfit", "calls", 1, May.Add(-time.Hour)))
	s.Drain(s.Validating, s.Aggregating)
	before := knownNow(d).at
	at := s.Append(
		Usage(d.Tenant, "bad", "panics", 1, May),
		Usage(d.Tenant, "no", "unknown", 1, May),
		Usage(d.Tenant, "later", "unknown", 1, june),
	)
	d.Rest()
	ask := func(feature string, asOf *events.Position) []usage.LeftOutUsage {
		q := usage.ExplainQuery{TenantID: d.Tenant, Feature: feature, PeriodKey: "2026-05", Limit: 10, Rejected: true}
		if asOf != nil {
			q.AsOf = &usage.AsOf{Position: asOf}
		}
		e, err := s.Reads.Explain(t.Context(), TenantViewer(d.Tenant), q)
		s.Must(err)
		if !e.Adds || e.LeftOut == nil || e.LeftOutMore {
			t.Errorf("%s: %+v", feature, e)
		}
		return e.LeftOut
	}
	if got := ask("panics", nil); len(got) != 1 || got[0].EventID != "bad" || got[0].Status != projections.UsageDeadLettered ||
		got[0].Code != projections.CodeFoldPanicked ||
		got[0].Position != at[0] {
		t.Errorf("parked: %+v", got)
	}
	if got := ask("unknown", nil); len(got) != 1 || got[0].EventID != "no" || got[0].Status != projections.UsageRejected ||
		got[0].Code != "feature_not_found" ||
		got[0].Reason == "" ||
		got[0].Position != at[1] {
		t.Errorf("rejected in May: %+v", got)
	}
	if got := append(ask("panics", &before), ask("unknown", &before)...); len(got) != 0 {
		t.Errorf("before it was recorded: %+v", got)
	}
	// Once it is counted, it is not left out any more.
	d.Subscribe(d.Tenant, May, Grant("unknown", domain.ResetMonthly), Grant("panics", domain.ResetMonthly))
	for range 4 {
		d.Retry(func(int) int { return 0 }, 1)
		d.Drain(d.Lettering)
	}
	s.Settle()
	if got := append(ask("panics", nil), ask("unknown", nil)...); slices.ContainsFunc(
		got,
		func(u usage.LeftOutUsage) bool { return u.Position == at[0] || u.Position == at[1] },
	) {
		t.Errorf("counted, and left out: %+v", got)
	}
	if got := ask("unknown", &at[2]); len(got) != 1 {
		t.Errorf("as known before the retry: %+v", got)
	}
}

// Corrections that do not count are left out of the period of their target, with their kind, whenever they were made.
func TestP12_LeftOutCorrectionsHaveTheirKind(t *testing.T) {
	s := NewPipeline(t)
	s.Payloads.Allow() // one has the amount 0
	d := NewHistory(s)
	s.Append(Usage(d.Tenant, "good", "panics", 0, May))
	s.Drain(s.Validating, s.Aggregating)
	s.Append(Usage(d.Tenant, "bad", "panics", 1, May), Usage(d.Tenant, "no", "unknown", 1, May))
	d.Rest()
	made := func(id, feature, of string, amount int64) events.Pending { // in June
		return Correction(d.Tenant, id, feature, of, amount).Pending
	}
	s.Append(
		made("parked", "panics", "good", 7),
		made("of parked", "panics", "bad", 2),
		made("of rejected", "unknown", "no", 2),
		made("of none", "unknown", "nobody", -1),
	)
	d.Rest()
	ask := func(feature, period string) (list []string) {
		e, err := s.Reads.Explain(
			t.Context(),
			TenantViewer(d.Tenant),
			usage.ExplainQuery{TenantID: d.Tenant, Feature: feature, PeriodKey: period, Limit: 10, Rejected: true},
		)
		s.Must(err)
		for _, u := range e.LeftOut {
			list = append(list, u.EventID+" "+u.Kind+" "+u.Status)
		}
		return list
	}
	for of, want := range map[[2]string][]string{
		{"panics", "2026-05"}:  {"bad usage DEAD_LETTERED", "parked correction DEAD_LETTERED", "of parked correction REJECTED"},
		{"panics", "2026-06"}:  nil,
		{"unknown", "2026-05"}: {"no usage REJECTED", "of rejected correction REJECTED"},
		{"unknown", "2026-06"}: {"of none retraction REJECTED"},
	} {
		if got := ask(of[0], of[1]); !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", of, got, want)
		}
	}
}

// If an event was refused several times, the last known refusal is listed.
func TestP12_TheLastRefusalIsListed(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	at := s.Append(Usage(tenant, "no", "calls", 5, May))[0]
	s.Settle()
	before := s.Head(tenant)
	letter := s.Receipt(tenant, "no").Rejected.DeadLetterID
	s.Subscribe(tenant, May, Grant("bytes", domain.ResetMonthly))
	s.Retry(tenant, letter, at.Number, 1)
	s.Settle()
	for code, asOf := range map[string]*usage.AsOf{"feature_not_found": nil, "no_active_subscription": {Position: &before}} {
		e, err := s.Reads.Explain(
			t.Context(),
			TenantViewer(tenant),
			usage.ExplainQuery{TenantID: tenant, Feature: "calls", PeriodKey: "2026-05", Rejected: true, Limit: 10, AsOf: asOf},
		)
		s.Must(err)
		if len(e.LeftOut) != 1 || e.LeftOut[0].Position != at || e.LeftOut[0].Code != code {
			t.Errorf("left out for %s: %+v", code, e.LeftOut)
		}
	}
}

// A re-aggregated event is a verdict of its own: a figure is true at its position once the aggregator has folded it,
// and not before, whatever the validator has passed.
func TestFiguresAtAReaggregatedEventContainIt(t *testing.T) {
	s := NewPipeline(t)
	tenant := TenantIn(3)
	s.Subscribe(tenant, May, Quota("calls", -1, domain.LimitSoft, domain.ResetMonthly))
	s.Append(Usage(tenant, "e", "calls", 5, May))
	s.Settle()
	again := Verdict(tenant, "calls", 7)
	again.Subject, again.DedupeKey, again.Counts = events.Reaggregated, events.KeyRetry(NewID(), 1), events.Counts{}
	var v events.Validated
	s.Must(json.Unmarshal(again.Payload, &v))
	var err error
	again.Payload, err = json.Marshal(events.Reaggregate{DeadLetterID: NewID(), Attempt: 1, Validated: v})
	s.Must(err)
	at := s.Append(again)[0]
	s.Drain(s.Validating) // the aggregator is stopped
	wait := query.Wait{MinPosition: &at}
	figures := func() (usage.Aggregates, error) {
		return s.Reads.Aggregates(t.Context(), TenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 10, Wait: wait})
	}
	_, err = figures()
	RefusedAs(t, query.ErrProjectionBehind, err)
	_, err = s.Reads.Receipt(t.Context(), TenantViewer(tenant), tenant, "e", wait)
	RefusedAs(t, query.ErrProjectionBehind, err)
	s.Settle()
	page, err := figures()
	s.Must(err)
	total := 0
	for _, a := range page.Data {
		n, err := strconv.Atoi(a.Amount.String())
		s.Must(err)
		total += n
	}
	if total != 12 || page.AsOf == nil || page.AsOf.Number < at.Number {
		t.Errorf("at %s the figures are %+v as of %v, want 12 in all", at, page.Data, page.AsOf)
	}
}

func TestWaitsForAPosition(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	at := s.Append(Usage(tenant, "e", "calls", 5, May))[0]
	wait := func(p events.Position, d time.Duration) (usage.Aggregates, error) {
		return s.Reads.Aggregates(
			t.Context(),
			TenantViewer(tenant),
			usage.AggregateQuery{TenantID: tenant, Limit: 1, Wait: query.Wait{MinPosition: &p, For: d}},
		)
	}
	RefusedAs(t, query.ErrProjectionBehind, Second(wait(at, 0)))
	RefusedAs(t, query.ErrProjectionBehind, Second(wait(at, 30*time.Millisecond)))
	RefusedAs(t, query.ErrPositionInvalid, Second(wait(events.Position{Partition: at.Partition, Number: at.Number + 9}, time.Minute)))
	RefusedAs(
		t,
		query.ErrPositionInvalid,
		Second(wait(events.Position{Partition: (at.Partition + 1) % events.Partitions, Number: 1}, time.Minute)),
	)
	s.Drain(s.Validating)
	RefusedAs(t, query.ErrProjectionBehind, Second(wait(at, 0)))
	answered := make(chan usage.Aggregates, 1)
	failed := make(chan error, 1)
	go func() {
		page, err := wait(at, time.Minute)
		answered <- page
		failed <- err
	}()
	s.Drain(s.Aggregating)
	page, err := <-answered, <-failed
	if err != nil || len(page.Data) != 1 || page.Data[0].Amount != "5" || page.AsOf.Number < at.Number {
		t.Errorf("%+v %v", page, err)
	}
	_, err = s.Reads.Check(t.Context(), TenantViewer(tenant), tenant, "calls", 1, query.Wait{MinPosition: &at})
	RefusedAs(t, query.ErrProjectionBehind, err)
	s.Drain(s.Entitling)
	check, err := s.Reads.Check(t.Context(), TenantViewer(tenant), tenant, "calls", 1, query.Wait{MinPosition: &at})
	if err != nil || check.Used.String() != "5" {
		t.Errorf("%+v %v", check, err)
	}
}

func TestAggregatesAreListedNewestFirst(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("monthly", domain.ResetMonthly), Grant("annual", domain.ResetAnnually), Grant("ever", domain.ResetNever))
	for _, u := range []struct {
		feature string
		month   int
	}{{"monthly", 0}, {"ever", 0}, {"annual", 0}, {"monthly", 1}, {"monthly", -4}, {"monthly", 1}} {
		s.Append(Usage(tenant, NewID().String(), u.feature, 1<<53-1, May.AddDate(0, u.month, 3)))
	}
	s.Settle()
	q := usage.AggregateQuery{TenantID: tenant, Limit: 2}
	var got []string
	for {
		page, err := s.Reads.Aggregates(t.Context(), TenantViewer(tenant), q)
		s.Must(err)
		for _, a := range page.Data {
			got = append(got, a.PeriodKey+" "+a.Feature+" "+a.Amount.String())
			if lifetime := a.PeriodKey == domain.PeriodLifetime; lifetime != (a.PeriodStart == nil) || lifetime != (a.PeriodEnd == nil) {
				t.Errorf("%+v", a)
			}
		}
		if page.AsOf == nil || page.AsOf.Number < 12 {
			t.Errorf("as of %v", page.AsOf)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	want := []string{"2026-06 monthly 18014398509481982", "2026-05 monthly 9007199254740991", "2026 annual 9007199254740991",
		"2026-01 monthly 9007199254740991", "lifetime ever 9007199254740991"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	page, err := s.Reads.Aggregates(
		t.Context(),
		Operator,
		usage.AggregateQuery{TenantID: tenant, Feature: "monthly", PeriodKey: "2026-05", Limit: 9},
	)
	if err != nil || len(page.Data) != 1 || page.Next != "" {
		t.Errorf("%+v %v", page, err)
	}
	for _, forged := range []string{"x", "1|2|3", "7|2026-05|monthly|" + tenant.String(), "1|2026-05|\x00|" + tenant.String(),
		"99999999999|2026|a|" + tenant.String()} {
		if _, err := s.Reads.Aggregates(t.Context(), Operator, usage.AggregateQuery{TenantID: tenant, Limit: 1, After: forged}); !errors.Is(
			err,
			query.ErrCursorInvalid,
		) {
			t.Errorf("%q: %v", forged, err)
		}
	}
}
