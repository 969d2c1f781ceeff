package domain

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

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
			end := LedgerRequest{Kind: kind, TenantID: ledgerTenant, Feature: "calls", Amount: 400, ReservationID: "r", EventID: "e", Lasts: time.Hour}
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
		h := History{{FromPosition: 1, Subscription: plan(c.then)}, {FromPosition: 2, EffectiveFrom: ledgerTime.Add(-time.Hour), Subscription: plan(c.now)}}
		at := ledgerTime.Add(-2 * time.Hour)
		_, g, refusal := Entitled(h, wholeHistory, "calls", at)
		if refusal != nil || h.Present("calls", g).Enforced() == c.granted {
			t.Errorf("%s, now %s: enforced %t %v", c.then, c.now, h.Present("calls", g).Enforced(), refusal)
		}
		r := ledgerRequest("calls", 11)
		r.Kind, r.At = Enforce, &at
		if _, _, refusal := NewLedger(ledgerTime).Decide(h, []LedgerRequest{r}); (refusal == nil) != c.granted {
			t.Errorf("%s, now %s: %v", c.then, c.now, refusal)
		}
	}
}
