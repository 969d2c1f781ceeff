package entitlements_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
)

func TestChecks(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	boolean := domain.Grant{Entitlement: domain.Entitlement{Feature: "sso"}, Type: domain.FeatureBoolean}
	metered := Quota("metered", 1, domain.LimitHard, domain.ResetMonthly)
	metered.Type = domain.FeatureMetered
	s.Subscribe(tenant, May, Quota("hard", 10, domain.LimitHard, domain.ResetMonthly),
		Quota("soft", 10, domain.LimitSoft, domain.ResetAnnually),
		Quota("over", 1, domain.LimitHard, domain.ResetNever), Quota("free", -1, domain.LimitHard, domain.ResetMonthly), metered, boolean)
	_, err := s.Pool.Exec(t.Context(), `INSERT INTO features VALUES ('known', '', 'QUOTA', '')`)
	s.Must(err)
	_, err = s.Pool.Exec(t.Context(), `INSERT INTO subscriptions VALUES ($1, $2, 'p', 'ACTIVE', '[]', now(), now())`, NewID(), tenant)
	s.Must(err)
	for _, feature := range []string{"hard", "soft", "over", "free", "metered"} {
		s.Append(Usage(tenant, feature, feature, 7, May), Usage(tenant, feature+" in April", feature, 100, May.AddDate(0, -1, 0)))
	}
	s.Settle()
	asOf := s.Head(tenant)
	for _, c := range []struct {
		feature string
		amount  int64
		want    string
	}{
		{"hard", 3,
			`"allowed":true,"feature":"hard","type":"QUOTA","limit":10,"used":7,"held":0,"remaining":3,"limitBehavior":"HARD",` +
				`"resetAt":"2026-06-01T00:00:00Z"`},
		{"hard", 4,
			`"allowed":false,"feature":"hard","type":"QUOTA","reason":"quota_exceeded","limit":10,"used":7,"held":0,"remaining":3,` +
				`"limitBehavior":"HARD","resetAt":"2026-06-01T00:00:00Z"`},
		{"soft", 1 << 60,
			`"allowed":true,"feature":"soft","type":"QUOTA","limit":10,"used":107,"held":0,"remaining":0,"limitBehavior":"SOFT",` +
				`"resetAt":"2027-01-01T00:00:00Z"`},
		{"over", 1,
			`"allowed":false,"feature":"over","type":"QUOTA","reason":"quota_exceeded","limit":1,"used":107,"held":0,"remaining":0,` +
				`"limitBehavior":"HARD","resetAt":null`},
		{"free", 1 << 62,
			`"allowed":true,"feature":"free","type":"QUOTA","limit":null,"used":7,"held":0,"remaining":null,"limitBehavior":"HARD",` +
				`"resetAt":"2026-06-01T00:00:00Z"`},
		{"metered", 1,
			`"allowed":true,"feature":"metered","type":"METERED","limit":1,"used":7,"held":0,"remaining":0,"limitBehavior":"HARD",` +
				`"resetAt":"2026-06-01T00:00:00Z"`},
		{"sso", 1, `"allowed":true,"feature":"sso","type":"BOOLEAN"`},
		{"known", 1, `"allowed":false,"feature":"known","reason":"not_entitled"`},
		{"unknown", 1, `"allowed":false,"feature":"unknown","reason":"feature_not_found"`},
		{"\x00", 1, `"allowed":false,"feature":"\u0000","reason":"feature_not_found"`},
	} {
		got, err := s.Reads.Check(t.Context(), TenantViewer(tenant), tenant, c.feature, c.amount, query.Wait{})
		s.Must(err)
		body, err := json.Marshal(got)
		s.Must(err)
		if want := fmt.Sprintf(`{%s,"asOfPosition":"%s"}`, c.want, asOf); string(body) != want {
			t.Errorf("got  %s\nwant %s", body, want)
		}
	}
	none, err := s.Reads.Check(t.Context(), Operator, NewID(), "known", 1, query.Wait{})
	if err != nil || none.Allowed || none.Reason != entitlements.ReasonNoSubscription {
		t.Errorf("%+v %v", none, err)
	}
	list, err := s.Reads.Entitlements(t.Context(), TenantViewer(tenant), tenant, query.Wait{})
	if err != nil || len(list.Data) != 6 || list.Data[0].Feature != "free" || list.AsOf != asOf {
		t.Errorf("%+v %v", list, err)
	}
	s.Now = May.AddDate(0, 1, 0)
	june, err := s.Reads.Check(t.Context(), Operator, tenant, "hard", 10, query.Wait{})
	if err != nil || !june.Allowed || june.Used.String() != "0" || !june.ResetAt.Equal(May.AddDate(0, 2, 0)) {
		t.Errorf("a new month begins at 0: %+v %v", june, err)
	}
}

// The grants follow the subscription that accepts usage, and only it.
func TestGrantsFollowSubscriptions(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	features := func() (all []string) {
		s.Settle()
		list, err := s.Reads.Entitlements(t.Context(), TenantViewer(tenant), tenant, query.Wait{})
		s.Must(err)
		for _, c := range list.Data {
			all = append(all, c.Feature)
		}
		return all
	}
	change := func(sub domain.Subscription) { // with another event behind it: the last of a stretch is read whatever it is
		s.Append(Plain(tenant, events.SubscriptionChanged, events.Counts{}, sub), Usage(tenant, NewID().String(), "none", 1, May))
	}
	first := s.Subscribe(tenant, May, Grant("a", domain.ResetMonthly), Grant("b", domain.ResetMonthly), Grant("b", domain.ResetNever))
	for _, step := range []struct {
		what string
		do   func()
		want []string
	}{
		{"created", func() {}, []string{"a", "b"}},
		{"trialing with another plan", func() {
			first.Status, first.Entitlements = domain.SubscriptionTrialing, []domain.Grant{Grant("b", domain.ResetMonthly),
				Grant("c", domain.ResetMonthly)}
			change(first)
		}, []string{"b", "c"}},
		{"past due", func() { first.Status = domain.SubscriptionPastDue; change(first) }, nil},
		{"another one", func() { s.Subscribe(tenant, May, Grant("d", domain.ResetNever)) }, []string{"d"}},
		{"the first one is cancelled", func() { first.Status = domain.SubscriptionCancelled; change(first) }, []string{"d"}},
		{"one without grants", func() { s.Subscribe(tenant, May) }, nil},
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
	s := NewPipeline(t)
	rapid.Check(t, func(rt *rapid.T) {
		tenant := TenantIn(rapid.Int16Range(0, 31).Draw(rt, "partition"))
		var subs []domain.Subscription
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			features := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(rt, "features")
			sub := domain.Subscription{ID: NewID(), TenantID: tenant, Entitlements: []domain.Grant{},
				Status: rapid.SampledFrom([]string{"ACTIVE", "TRIALING", "CANCELLED"}).Draw(rt, "status")}
			if len(subs) > 0 && rapid.Bool().Draw(rt, "change") {
				sub.ID = subs[len(subs)-1].ID
			}
			for _, f := range features {
				sub.Entitlements = append(sub.Entitlements, Grant(f, domain.ResetMonthly))
			}
			subs = append(subs, sub)
			verdict := events.Validated{RawPosition: int64(len(subs)) + 1, EventID: "e", Feature: "a", FeatureType: "QUOTA",
				PeriodKey: "2026-05", Amount: rapid.Int64Min(0).Draw(rt, "amount"), Timestamp: May}
			s.Append(Plain(tenant, events.SubscriptionChanged, events.Counts{}, sub), Plain(tenant, events.UsageValidated, events.Counts{},
				verdict))
		}
		s.Entitling.Consumer.MaxPerPartition = rapid.IntRange(1, 30).Draw(rt, "batch")
		s.Drain(s.Entitling)
		s.Drain(s.AddSeparateGeneration(entitlements.Consumer(models.DefaultFolds().Entitlements, NewID)))
		var differ int
		s.Must(s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM (
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

// accountsOf inserts accounts of a tenant, each with a number of open reservations, and one that has ended.
func accountsOf(s *Pipeline, tenant uuid.UUID, open int) (names []string) {
	s.Helper()
	for _, feature := range []string{"a", "b"} {
		for _, period := range []string{"2026-04", "2026-05", "lifetime"} {
			_, err := s.Pool.Exec(s.Context(),
				`INSERT INTO quota_accounts (tenant_id, feature, period_key, used, held) VALUES ($1, $2, $3, 1, 0)`, tenant, feature,
				period)
			s.Must(err)
			_, err = s.Pool.Exec(s.Context(),
				`INSERT INTO reservations (tenant_id, reservation_id, feature, period_key, subscription_id, feature_type, amount, state,
					expires_at, held_position, ended_position, ended_at)
 SELECT $1, $3 || n, $2, $3, $1, 'QUOTA', 1, CASE WHEN n = 0 THEN 'RELEASED' ELSE 'HELD' END, now(), 1, CASE WHEN n = 0 THEN 2 END,
 CASE WHEN n = 0 THEN now() END FROM generate_series(0, $4::int) n`, tenant, feature, period, open)
			s.Must(err)
			names = append(names, fmt.Sprint(feature, " ", period, ": ", open))
		}
	}
	return names
}

// Pages of accounts list each account once, also the periods of one feature, with the open reservations of its tenant alone.
func TestP9_PagesOfAccountsAreComplete(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	want := accountsOf(s, tenant, 2)
	accountsOf(s, NewID(), 3)
	for _, limit := range []int{1, 2, 5, 6, 7} {
		var got []string
		q := entitlements.AccountQuery{TenantID: tenant, Limit: limit}
		for more := true; more; {
			page, _, err := s.Reads.Accounts(t.Context(), q)
			s.Must(err)
			for _, a := range page {
				got = append(got, fmt.Sprint(a.Feature, " ", a.PeriodKey, ": ", a.OpenReservations))
				q.AfterFeature, q.AfterPeriod = a.Feature, a.PeriodKey
			}
			more = len(page) == limit
		}
		if !slices.Equal(got, want) {
			t.Errorf("accounts and their open reservations in pages of %d:\ngot  %v\nwant %v", limit, got, want)
		}
	}
}
