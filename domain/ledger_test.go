package domain

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

var (
	ledgerTenant = uuid.UUID{7}
	ledgerTime   = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
)

// granting returns the history of a tenant whose only subscription has the grants.
func granting(grants ...Grant) History {
	return History{{FromPosition: 1, Subscription: &Subscription{ID: uuid.UUID{1}, Status: SubscriptionActive, Entitlements: grants}}}
}

// quota returns a grant; of no limit if limit is negative.
func quota(feature string, limit int64, behavior, reset string) Grant {
	g := Grant{Entitlement: Entitlement{Feature: feature, LimitBehavior: behavior, ResetPeriod: reset}, Type: FeatureQuota}
	if limit >= 0 {
		g.Limit = &limit
	}
	return g
}

// featureOf returns a grant of another type.
func featureOf(kind, feature string) Grant {
	return Grant{Entitlement: Entitlement{Feature: feature, LimitBehavior: LimitHard, ResetPeriod: ResetMonthly}, Type: kind}
}

func ledgerRequest(feature string, amount int64) LedgerRequest {
	return LedgerRequest{TenantID: ledgerTenant, Feature: feature, Amount: amount}
}

// usedIn returns the used amount of an account of the ledger.
func (l *Ledger) usedIn(feature, period string) string {
	return l.account(AccountKey{ledgerTenant, feature, period}).Used.String()
}

// First fit, no running sum: a denied request does not reduce the amount for the next one.
func TestP7_ADeniedRequestTakesNothing(t *testing.T) {
	h, l := granting(quota("calls", 10, LimitHard, ResetMonthly)), NewLedger(ledgerTime)
	for _, c := range []struct {
		amount  int64
		granted bool
		used    string
	}{{6, true, "6"}, {5, false, "6"}, {3, true, "9"}, {1, true, "10"}, {1, false, "10"}} {
		_, refused, refusal := l.Decide(h, []LedgerRequest{ledgerRequest("calls", c.amount)})
		if (refusal == nil) != c.granted || (refused == -1) != c.granted || l.usedIn("calls", "2026-05") != c.used {
			t.Errorf("%d: %v, and %s are used", c.amount, refusal, l.usedIn("calls", "2026-05"))
		}
	}
	_, at, refusal := l.Decide(h, []LedgerRequest{ledgerRequest("calls", 1)})
	if at != 0 || refusal.Pointer != "/amount" || refusal.Quota.PeriodKey != "2026-05" || refusal.Quota.Remaining().Sign() != 0 {
		t.Errorf("%d %+v", at, refusal)
	}
}

func TestP7_RequestsTogetherAreGrantedOrUndone(t *testing.T) {
	h := granting(quota("calls", 10, LimitHard, ResetMonthly), quota("tokens", 100, LimitHard, ResetMonthly),
		featureOf(FeatureMetered, "bytes"))
	l := NewLedger(ledgerTime)
	for i, together := range [][]LedgerRequest{
		// the last one is above the limit with the first one
		{ledgerRequest("calls", 4), ledgerRequest("tokens", 90), ledgerRequest("bytes", 5), ledgerRequest("calls", 7)},
		{ledgerRequest("tokens", 90), ledgerRequest("calls", 4), ledgerRequest("calls", 4), ledgerRequest("none", 1)},
		{ledgerRequest("calls", 11), ledgerRequest("tokens", 1)},
	} {
		granted, refused, refusal := l.Decide(h, together)
		if granted[refused].Refusal != refusal || refused != []int{3, 3, 0}[i] || refusal == nil || l.usedIn("calls", "2026-05") != "0" ||
			l.usedIn("tokens", "2026-05") != "0" {
			t.Errorf("%v: %v %d %v; %s and %s are used", together, granted, refused, refusal, l.usedIn("calls", "2026-05"),
				l.usedIn("tokens", "2026-05"))
		}
	}
	granted, _, refusal := l.Decide(h, []LedgerRequest{ledgerRequest("calls", 4), ledgerRequest("tokens", 90), ledgerRequest("calls", 6)})
	if refusal != nil || len(granted) != 3 || granted[0].Used.String() != "4" || granted[2].Used.String() != "10" {
		t.Errorf("%v %v", granted, refusal)
	}
}

// Of requests together each refused one has its refusal: a client leaves them all out at once.
func TestP7_EachRefusedRequestOfAListHasItsRefusal(t *testing.T) {
	h, l := granting(quota("calls", 10, LimitHard, ResetMonthly)), NewLedger(ledgerTime)
	list, refused, _ := l.Decide(h, []LedgerRequest{ledgerRequest("calls", 6), ledgerRequest("calls", 5), ledgerRequest("calls", 4),
		ledgerRequest("none", 1)})
	var codes []string
	for _, d := range list {
		code := "granted"
		if d.Refusal != nil {
			code = d.Refusal.Code
		}
		codes = append(codes, code)
	}
	if want := []string{"granted", "quota_exceeded", "granted", "feature_not_found"}; !slices.Equal(codes, want) || refused != 1 ||
		l.usedIn("calls", "2026-05") != "0" {
		t.Errorf("%v, the first refused is %d; %s are used", codes, refused, l.usedIn("calls", "2026-05"))
	}
}

// SOFT limits, METERED features and QUOTA features without a limit never deny, also far past 64 bits.
func TestP7_OnlyHardLimitsDeny(t *testing.T) {
	h := granting(quota("soft", 1, LimitSoft, ResetMonthly), quota("open", -1, LimitHard, ResetMonthly),
		featureOf(FeatureMetered, "metered"))
	l := NewLedger(ledgerTime)
	const times = 2100 // of 2^53 − 1 is above 2^63
	for _, feature := range []string{"soft", "open", "metered"} {
		var last Decision
		for range times {
			granted, _, refusal := l.Decide(h, []LedgerRequest{ledgerRequest(feature, MaxAmount)})
			if refusal != nil {
				t.Fatal(feature, refusal)
			}
			last = granted[0]
		}
		want := new(big.Int).Mul(big.NewInt(MaxAmount), big.NewInt(times))
		switch {
		case feature == "metered":
			if last.Used != nil || last.Held != nil {
				t.Errorf("METERED has an account: %+v", last)
			}
		case last.Used.Cmp(want) != 0 || last.Used.IsInt64():
			t.Errorf("%s of %s are used instead of %s", last.Used, feature, want)
		}
	}
	if _, ok := l.Account(h, ledgerRequest("metered", 1)); ok {
		t.Error("a METERED feature needs an account")
	}
}

func TestP7_RemainingIsNeverNegative(t *testing.T) {
	for _, c := range []struct{ limit, used, held, want int64 }{
		{10, 3, 4, 3}, {10, 6, 4, 0}, {10, 11, 0, 0}, {10, 0, 11, 0}, {0, 0, 0, 0}, {10, 1 << 62, 1 << 62, 0}, {MaxAmount, 0, 0, MaxAmount},
	} {
		if got := Remaining(big.NewInt(c.limit), big.NewInt(c.used), big.NewInt(c.held)); got.Int64() != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A change of the plan, or of the limit, leaves the account as it is.
func TestP7_AnAccountHoldsNoLimit(t *testing.T) {
	l := NewLedger(ledgerTime)
	soft, hard := granting(quota("calls", 5, LimitSoft, ResetMonthly)), granting(quota("calls", 10, LimitHard, ResetMonthly))
	if _, _, refusal := l.Decide(soft, []LedgerRequest{ledgerRequest("calls", 9)}); refusal != nil {
		t.Fatal(refusal)
	}
	if _, _, refusal := l.Decide(hard, []LedgerRequest{ledgerRequest("calls", 2)}); refusal == nil ||
		refusal.Quota.Remaining().String() != "1" {
		t.Errorf("the HARD limit does not know the usage before: %v", refusal)
	}
	lower := granting(quota("calls", 4, LimitHard, ResetMonthly))
	if _, _, refusal := l.Decide(lower, []LedgerRequest{ledgerRequest("calls", 1)}); refusal == nil ||
		refusal.Quota.Remaining().Sign() != 0 {
		t.Errorf("a lowered limit: %v", refusal)
	}
	annual := granting(quota("calls", 10, LimitHard, ResetAnnually)) // another reset period is another account
	if granted, _, refusal := l.Decide(annual, []LedgerRequest{ledgerRequest("calls", 10)}); refusal != nil ||
		granted[0].PeriodKey != "2026" || l.usedIn("calls", "2026-05") != "9" {
		t.Errorf("%v %v, and %s are used in May", granted, refusal, l.usedIn("calls", "2026-05"))
	}
}

func TestP7_EachPeriodHasItsAccount(t *testing.T) {
	last, first := time.Date(2026, 12, 31, 23, 59, 59, 999_999_000, time.UTC), time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ reset, before, after string }{
		{ResetMonthly, "2026-12", "2027-01"}, {ResetAnnually, "2026", "2027"}, {ResetNever, PeriodLifetime, PeriodLifetime},
	} {
		h := granting(quota("calls", 1, LimitHard, c.reset))
		for at, want := range map[time.Time]string{
			last: c.before, last.Add(999 * time.Nanosecond): c.before, first: c.after,
			first.In(time.FixedZone("", -5*3600)): c.after, last.In(time.FixedZone("", 5*3600)): c.before,
		} {
			l := NewLedger(at)
			l.Load(AccountKey{ledgerTenant, "calls", c.before}, &Account{})
			key, ok := l.Account(h, ledgerRequest("calls", 1))
			if !ok || key != (AccountKey{ledgerTenant, "calls", want}) || l.Has(key) != (want == c.before) {
				t.Errorf("%s at %s: %+v, loaded %t", c.reset, at, key, l.Has(key))
			}
			granted, _, refusal := l.Decide(h, []LedgerRequest{ledgerRequest("calls", 1)})
			if refusal != nil || granted[0].PeriodKey != want || !granted[0].At.Equal(at) {
				t.Errorf("%s at %s: %+v %v", c.reset, at, granted, refusal)
			}
		}
	}
}

// Usage of an earlier time is refused by the limit in force at the decision: a producer cannot choose an older limit by its
// timestamp, and a raised limit holds for usage that was queued before. Its account is of its time.
func TestP7_EnforcedUsageOfAnEarlierTimeIsDecidedByThePresentLimit(t *testing.T) {
	enforced := func(limit int64, behavior, reset string) *Subscription {
		g := quota("calls", limit, behavior, reset)
		g.OnIngest = OnIngestEnforce
		return &Subscription{ID: uuid.UUID{byte(limit)}, Status: SubscriptionActive, Entitlements: []Grant{g}}
	}
	then, changed := ledgerTime.Add(-2*time.Hour), ledgerTime.Add(-time.Hour)
	for name, c := range map[string]struct {
		now     *Subscription
		amount  int64
		granted bool
		limit   int64
	}{
		"lowered":              {enforced(5, LimitHard, ResetMonthly), 5, false, 5},
		"raised":               {enforced(20, LimitHard, ResetMonthly), 6, true, 20},
		"SOFT":                 {enforced(5, LimitSoft, ResetMonthly), 6, true, 5},
		"another reset period": {enforced(20, LimitHard, ResetAnnually), 6, false, 10},
		"cancelled":            {nil, 6, false, 10},
		"without the feature":  {&Subscription{Status: SubscriptionActive}, 6, false, 10},
	} {
		h := History{{FromPosition: 1, Subscription: enforced(10, LimitHard, ResetMonthly)},
			{FromPosition: 2, EffectiveFrom: changed, Subscription: c.now}}
		l := NewLedger(ledgerTime)
		a := new(Account)
		a.Used.SetInt64(5)
		l.Load(AccountKey{ledgerTenant, "calls", "2026-05"}, a)
		r := ledgerRequest("calls", c.amount)
		r.Kind, r.At = Enforce, &then
		granted, _, refusal := l.Decide(h, []LedgerRequest{r})
		switch {
		case (refusal == nil) != c.granted:
			t.Errorf("%s: %v", name, refusal)
		case c.granted && (*granted[0].Limit != c.limit || granted[0].SubscriptionID != uuid.UUID{10} || granted[0].PeriodKey != "2026-05"):
			t.Errorf("%s: %+v", name, granted[0])
		case !c.granted && refusal.Quota.Limit.Int64() != c.limit:
			t.Errorf("%s: refused by the limit %s", name, refusal.Quota.Limit)
		}
	}
}

// The year 1 is a time as any other, and that of a producer's unset time: such usage is of no other period.
func TestP7_EnforcedUsageOfTheFirstInstantIsOfItsTime(t *testing.T) {
	g := quota("calls", 10, LimitHard, ResetMonthly)
	g.OnIngest = OnIngestEnforce
	first := time.Time{}.UTC()
	r := ledgerRequest("calls", 1)
	r.Kind, r.At = Enforce, &first
	l := NewLedger(ledgerTime)
	if key, ok := l.Account(granting(g), r); !ok || key.PeriodKey != "0001-01" {
		t.Errorf("the account is %+v", key)
	} else {
		l.Load(key, new(Account))
	}
	if granted, _, refusal := l.Decide(granting(g), []LedgerRequest{r}); refusal != nil || granted[0].PeriodKey != "0001-01" ||
		!granted[0].At.Equal(first) {
		t.Errorf("%+v %v", granted, refusal)
	}
}

// A commit counts in the period and in the subscription of its hold, whatever is in force by then; the rest is held no longer.
func TestP7_AHoldOfMayCountsInMay(t *testing.T) {
	may, june := time.Date(2026, 5, 31, 23, 59, 59, 0, time.UTC), time.Date(2026, 6, 1, 0, 0, 1, 0, time.UTC)
	hold := ledgerRequest("calls", 7)
	hold.Kind, hold.ReservationID, hold.Lasts = Hold, "r", time.Hour
	l := NewLedger(may)
	held, _, refusal := l.Decide(granting(quota("calls", 10, LimitHard, ResetMonthly)), []LedgerRequest{hold})
	if refusal != nil || held[0].PeriodKey != "2026-05" || held[0].Held.String() != "7" {
		t.Fatal(held, refusal)
	}
	annual := History{{FromPosition: 1, Subscription: &Subscription{ID: uuid.UUID{2}, Status: SubscriptionActive,
		Entitlements: []Grant{quota("calls", 3, LimitHard, ResetAnnually)}}}}
	for name, h := range map[string]History{"the same plan": granting(quota("calls", 10, LimitHard, ResetMonthly)),
		"another subscription": annual, "none": nil} {
		l := NewLedger(june)
		a := new(Account)
		a.Held.SetInt64(7)
		l.Load(AccountKey{ledgerTenant, "calls", "2026-05"}, a)
		l.LoadReservation(ledgerTenant, held[0].Reservation)
		commit := ledgerRequest("calls", 4)
		commit.Kind, commit.ReservationID, commit.EventID = Commit, "r", "use"
		granted, _, refusal := l.Decide(h, []LedgerRequest{commit})
		if refusal != nil {
			t.Fatal(name, refusal)
		}
		d := granted[0]
		if d.PeriodKey != "2026-05" || d.SubscriptionID != (uuid.UUID{1}) || !d.At.Equal(june) || d.Used.String() != "4" ||
			d.Held.Sign() != 0 || d.HeldAmount != 7 ||
			*d.Account != (events.AccountChange{Feature: "calls", PeriodKey: "2026-05", Used: 4, Held: -7}) ||
			d.Reservation.State != events.StateCommitted {
			t.Errorf("%s: %+v, account %+v, reservation %+v", name, d, d.Account, d.Reservation)
		}
		if l.usedIn("calls", "2026-06") != "0" || l.usedIn("calls", "2026") != "0" {
			t.Errorf("%s: another account is changed", name)
		}
	}
}

// A commit, an extension and a release answer with the present limit of the reservation's account, and with the limit of its grant if
// the present grant has another account.
func TestP7_AnAnswerHasTheLimitOfItsAccount(t *testing.T) {
	grant := func(limit int64, reset string) History { return granting(quota("calls", limit, LimitHard, reset)) }
	for name, c := range map[string]struct {
		now  History
		want int64
	}{
		"raised":               {grant(2000, ResetMonthly), 2000},
		"another reset period": {grant(12_000, ResetAnnually), 1000},
		"never resets":         {grant(12_000, ResetNever), 1000},
		"cancelled":            {nil, 1000},
	} {
		for _, kind := range []RequestKind{Commit, Extend, Release} {
			l := NewLedger(ledgerTime)
			hold := LedgerRequest{Kind: Hold, TenantID: ledgerTenant, Feature: "calls", Amount: 500, ReservationID: "r", Lasts: time.Hour}
			if _, _, refusal := l.Decide(grant(1000, ResetMonthly), []LedgerRequest{hold}); refusal != nil {
				t.Fatal(refusal)
			}
			l.DecideAt(ledgerTime.AddDate(0, 1, 0)) // in June
			end := LedgerRequest{Kind: kind, TenantID: ledgerTenant, Feature: "calls", Amount: 400, ReservationID: "r", EventID: "e",
				Lasts: time.Hour}
			granted, _, refusal := l.Decide(c.now, []LedgerRequest{end})
			if refusal != nil || *granted[0].Limit != c.want || granted[0].PeriodKey != "2026-05" {
				t.Errorf("%s, request %d: %+v %v", name, kind, granted, refusal)
			}
		}
	}
}

// Usage is enforced by the grant in force at the decision: an earlier timestamp does not avoid a limit that is enforced now, and
// usage from before the plan recorded it is not refused any more.
func TestP7_UsageIsEnforcedByThePresentGrant(t *testing.T) {
	plan := func(onIngest string) *Subscription {
		g := quota("calls", 10, LimitHard, ResetMonthly)
		g.OnIngest = onIngest
		return &Subscription{ID: uuid.UUID{1}, Status: SubscriptionActive, Entitlements: []Grant{g}}
	}
	for _, c := range []struct {
		then, now string
		granted   bool
	}{{OnIngestRecord, OnIngestEnforce, false}, {OnIngestEnforce, OnIngestRecord, true}} {
		h := History{{FromPosition: 1, Subscription: plan(c.then)}, {FromPosition: 2, EffectiveFrom: ledgerTime.Add(-time.Hour),
			Subscription: plan(c.now)}}
		at := ledgerTime.Add(-2 * time.Hour)
		_, g, refusal := Entitled(h, wholeHistory, "calls", at)
		if refusal != nil || Enforced(h.Present("calls", g)) == c.granted {
			t.Errorf("%s, now %s: enforced %t %v", c.then, c.now, Enforced(h.Present("calls", g)), refusal)
		}
		r := ledgerRequest("calls", 11)
		r.Kind, r.At = Enforce, &at
		if _, _, refusal := NewLedger(ledgerTime).Decide(h, []LedgerRequest{r}); (refusal == nil) != c.granted {
			t.Errorf("%s, now %s: %v", c.then, c.now, refusal)
		}
	}
}
