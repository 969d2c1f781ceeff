package usage_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/projections/projectionstest"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

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
		return s.Reads.Aggregates(t.Context(), TenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 1, Wait: query.Wait{MinPosition: &p, For: d}})
	}
	RefusedAs(t, query.ErrProjectionBehind, Second(wait(at, 0)))
	RefusedAs(t, query.ErrProjectionBehind, Second(wait(at, 30*time.Millisecond)))
	RefusedAs(t, query.ErrPositionInvalid, Second(wait(events.Position{Partition: at.Partition, Number: at.Number + 9}, time.Minute)))
	RefusedAs(t, query.ErrPositionInvalid, Second(wait(events.Position{Partition: (at.Partition + 1) % events.Partitions, Number: 1}, time.Minute)))
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
	page, err := s.Reads.Aggregates(t.Context(), Operator, usage.AggregateQuery{TenantID: tenant, Feature: "monthly", PeriodKey: "2026-05", Limit: 9})
	if err != nil || len(page.Data) != 1 || page.Next != "" {
		t.Errorf("%+v %v", page, err)
	}
	for _, forged := range []string{"x", "1|2|3", "7|2026-05|monthly|" + tenant.String(), "1|2026-05|\x00|" + tenant.String(), "99999999999|2026|a|" + tenant.String()} {
		if _, err := s.Reads.Aggregates(t.Context(), Operator, usage.AggregateQuery{TenantID: tenant, Limit: 1, After: forged}); !errors.Is(err, query.ErrCursorInvalid) {
			t.Errorf("%q: %v", forged, err)
		}
	}
}
