package projections_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

func TestChecks(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	boolean := domain.Grant{Entitlement: domain.Entitlement{Feature: "sso"}, Type: domain.FeatureBoolean}
	metered := quota("metered", 1, domain.LimitHard, domain.ResetMonthly)
	metered.Type = domain.FeatureMetered
	s.subscribe(tenant, may, quota("hard", 10, domain.LimitHard, domain.ResetMonthly), quota("soft", 10, domain.LimitSoft, domain.ResetAnnually),
		quota("over", 1, domain.LimitHard, domain.ResetNever), quota("free", -1, domain.LimitHard, domain.ResetMonthly), metered, boolean)
	_, err := s.pool.Exec(t.Context(), `INSERT INTO features VALUES ('known', '', 'QUOTA', '')`)
	s.must(err)
	_, err = s.pool.Exec(t.Context(), `INSERT INTO subscriptions VALUES ($1, $2, 'p', 'ACTIVE', '[]', now())`, newID(), tenant)
	s.must(err)
	for _, feature := range []string{"hard", "soft", "over", "free", "metered"} {
		s.append(usageEvent(tenant, feature, feature, 7, may), usageEvent(tenant, feature+" in April", feature, 100, may.AddDate(0, -1, 0)))
	}
	s.settle()
	asOf := s.head(tenant)
	for _, c := range []struct {
		feature string
		amount  int64
		want    string
	}{
		{"hard", 3, `"allowed":true,"feature":"hard","type":"QUOTA","limit":10,"used":7,"held":0,"remaining":3,"limitBehavior":"HARD","resetAt":"2026-06-01T00:00:00Z"`},
		{"hard", 4, `"allowed":false,"feature":"hard","type":"QUOTA","reason":"quota_exceeded","limit":10,"used":7,"held":0,"remaining":3,"limitBehavior":"HARD","resetAt":"2026-06-01T00:00:00Z"`},
		{"soft", 1 << 60, `"allowed":true,"feature":"soft","type":"QUOTA","limit":10,"used":107,"held":0,"remaining":0,"limitBehavior":"SOFT","resetAt":"2027-01-01T00:00:00Z"`},
		{"over", 1, `"allowed":false,"feature":"over","type":"QUOTA","reason":"quota_exceeded","limit":1,"used":107,"held":0,"remaining":0,"limitBehavior":"HARD","resetAt":null`},
		{"free", 1 << 62, `"allowed":true,"feature":"free","type":"QUOTA","limit":null,"used":7,"held":0,"remaining":null,"limitBehavior":"HARD","resetAt":"2026-06-01T00:00:00Z"`},
		{"metered", 1, `"allowed":true,"feature":"metered","type":"METERED","limit":1,"used":7,"held":0,"remaining":0,"limitBehavior":"HARD","resetAt":"2026-06-01T00:00:00Z"`},
		{"sso", 1, `"allowed":true,"feature":"sso","type":"BOOLEAN"`},
		{"known", 1, `"allowed":false,"feature":"known","reason":"not_entitled"`},
		{"unknown", 1, `"allowed":false,"feature":"unknown","reason":"feature_not_found"`},
		{"\x00", 1, `"allowed":false,"feature":"\u0000","reason":"feature_not_found"`},
	} {
		got, err := s.reads.Check(t.Context(), tenantViewer(tenant), tenant, c.feature, c.amount, query.Wait{})
		s.must(err)
		body, err := json.Marshal(got)
		s.must(err)
		if want := fmt.Sprintf(`{%s,"asOfPosition":"%s"}`, c.want, asOf); string(body) != want {
			t.Errorf("got  %s\nwant %s", body, want)
		}
	}
	none, err := s.reads.Check(t.Context(), operator, newID(), "known", 1, query.Wait{})
	if err != nil || none.Allowed || none.Reason != entitlements.ReasonNoSubscription {
		t.Errorf("%+v %v", none, err)
	}
	list, err := s.reads.Entitlements(t.Context(), tenantViewer(tenant), tenant, query.Wait{})
	if err != nil || len(list.Data) != 6 || list.Data[0].Feature != "free" || list.AsOf != asOf {
		t.Errorf("%+v %v", list, err)
	}
	s.now = may.AddDate(0, 1, 0)
	june, err := s.reads.Check(t.Context(), operator, tenant, "hard", 10, query.Wait{})
	if err != nil || !june.Allowed || june.Used.String() != "0" || !june.ResetAt.Equal(may.AddDate(0, 2, 0)) {
		t.Errorf("a new month begins at 0: %+v %v", june, err)
	}
}

func (s *pipelineFixture) head(tenant uuid.UUID) events.Position {
	s.Helper()
	p := events.Position{Partition: events.PartitionOf(tenant)}
	s.must(s.pool.QueryRow(s.Context(), `SELECT position FROM log_heads WHERE partition = $1`, p.Partition).Scan(&p.Number))
	return p
}

// The grants follow the subscription that accepts usage, and only it.
func TestGrantsFollowSubscriptions(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	features := func() (all []string) {
		s.settle()
		list, err := s.reads.Entitlements(t.Context(), tenantViewer(tenant), tenant, query.Wait{})
		s.must(err)
		for _, c := range list.Data {
			all = append(all, c.Feature)
		}
		return all
	}
	change := func(sub domain.Subscription) { // with another event behind it: the last of a stretch is read whatever it is
		s.append(plainEvent(tenant, events.SubscriptionChanged, events.Counts{}, sub), usageEvent(tenant, newID().String(), "none", 1, may))
	}
	first := s.subscribe(tenant, may, grant("a", domain.ResetMonthly), grant("b", domain.ResetMonthly), grant("b", domain.ResetNever))
	for _, step := range []struct {
		what string
		do   func()
		want []string
	}{
		{"created", func() {}, []string{"a", "b"}},
		{"trialing with another plan", func() {
			first.Status, first.Entitlements = domain.SubscriptionTrialing, []domain.Grant{grant("b", domain.ResetMonthly), grant("c", domain.ResetMonthly)}
			change(first)
		}, []string{"b", "c"}},
		{"past due", func() { first.Status = domain.SubscriptionPastDue; change(first) }, nil},
		{"another one", func() { s.subscribe(tenant, may, grant("d", domain.ResetNever)) }, []string{"d"}},
		{"the first one is cancelled", func() { first.Status = domain.SubscriptionCancelled; change(first) }, []string{"d"}},
		{"one without grants", func() { s.subscribe(tenant, may) }, nil},
	} {
		step.do()
		if got := features(); !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}

// P5: however the log is cut into batches, the rows are the same.
func TestP5_EntitlementsDoNotDependOnBatches(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := newPipelineFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		tenant := tenantIn(rapid.Int16Range(0, 31).Draw(rt, "partition"))
		var subs []domain.Subscription
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			features := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(rt, "features")
			sub := domain.Subscription{ID: newID(), TenantID: tenant, Entitlements: []domain.Grant{}, Status: rapid.SampledFrom([]string{"ACTIVE", "TRIALING", "CANCELLED"}).Draw(rt, "status")}
			if len(subs) > 0 && rapid.Bool().Draw(rt, "change") {
				sub.ID = subs[len(subs)-1].ID
			}
			for _, f := range features {
				sub.Entitlements = append(sub.Entitlements, grant(f, domain.ResetMonthly))
			}
			subs = append(subs, sub)
			verdict := events.Validated{RawPosition: int64(len(subs)) + 1, EventID: "e", Feature: "a", FeatureType: "QUOTA", PeriodKey: "2026-05", Amount: rapid.Int64Min(0).Draw(rt, "amount"), Timestamp: may}
			s.append(plainEvent(tenant, events.SubscriptionChanged, events.Counts{}, sub), plainEvent(tenant, events.UsageValidated, events.Counts{}, verdict))
		}
		s.entitling.Consumer.MaxPerPartition = rapid.IntRange(1, 30).Draw(rt, "batch")
		s.drain(s.entitling)
		s.drain(s.addSeparateGeneration(entitlements.Consumer(models.DefaultFolds().Entitlements, newID)))
		var differ int
		s.must(s.pool.QueryRow(t.Context(), `SELECT count(*) FROM (
			(SELECT tenant_id, feature, subscription_id::text, '' FROM entitlement_grants WHERE generation = 1 UNION ALL
			 SELECT tenant_id, feature, period_key, used::text FROM entitlement_usage WHERE generation = 1)
			EXCEPT ALL
			(SELECT tenant_id, feature, subscription_id::text, '' FROM entitlement_grants WHERE generation = 2 UNION ALL
			 SELECT tenant_id, feature, period_key, used::text FROM entitlement_usage WHERE generation = 2)) d`).Scan(&differ))
		if differ != 0 {
			rt.Fatalf("%d rows differ", differ)
		}
	})
}

func TestWaitsForAPosition(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "e", "calls", 5, may))[0]
	wait := func(p events.Position, d time.Duration) (usage.Aggregates, error) {
		return s.reads.Aggregates(t.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 1, Wait: query.Wait{MinPosition: &p, For: d}})
	}
	refusedAs(t, query.ErrProjectionBehind, second(wait(at, 0)))
	refusedAs(t, query.ErrProjectionBehind, second(wait(at, 30*time.Millisecond)))
	refusedAs(t, query.ErrPositionInvalid, second(wait(events.Position{Partition: at.Partition, Number: at.Number + 9}, time.Minute)))
	refusedAs(t, query.ErrPositionInvalid, second(wait(events.Position{Partition: (at.Partition + 1) % events.Partitions, Number: 1}, time.Minute)))
	s.drain(s.validating)
	refusedAs(t, query.ErrProjectionBehind, second(wait(at, 0)))
	answered := make(chan usage.Aggregates, 1)
	failed := make(chan error, 1)
	go func() {
		page, err := wait(at, time.Minute)
		answered <- page
		failed <- err
	}()
	s.drain(s.aggregating)
	page, err := <-answered, <-failed
	if err != nil || len(page.Data) != 1 || page.Data[0].Amount != "5" || page.AsOf.Number < at.Number {
		t.Errorf("%+v %v", page, err)
	}
	_, err = s.reads.Check(t.Context(), tenantViewer(tenant), tenant, "calls", 1, query.Wait{MinPosition: &at})
	refusedAs(t, query.ErrProjectionBehind, err)
	s.drain(s.entitling)
	check, err := s.reads.Check(t.Context(), tenantViewer(tenant), tenant, "calls", 1, query.Wait{MinPosition: &at})
	if err != nil || check.Used.String() != "5" {
		t.Errorf("%+v %v", check, err)
	}
}
