package domain

import (
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// holdFor makes a request to hold an amount of calls.
func holdFor(id string, amount int64, lasts time.Duration) LedgerRequest {
	return LedgerRequest{Kind: Hold, TenantID: ledgerTenant, Feature: "calls", Amount: amount, ReservationID: id, Lasts: lasts}
}

// onHold makes a request of a kind about a reservation of calls.
func onHold(kind RequestKind, id string, amount int64, lasts time.Duration) LedgerRequest {
	return LedgerRequest{Kind: kind, TenantID: ledgerTenant, Feature: "calls", Amount: amount, ReservationID: id, EventID: "use of " + id,
		Lasts: lasts}
}

// A hold that is undone, because one granted together with it is refused, is unknown to the requests behind it in the group.
func TestP7_AHoldThatIsUndoneHoldsNothing(t *testing.T) {
	h, l := granting(quota("calls", 10, LimitHard, ResetMonthly)), NewLedger(ledgerTime)
	if _, refused, refusal := l.Decide(h, []LedgerRequest{holdFor("r", 6, time.Hour), holdFor("s", 6, time.Hour)}); refusal == nil ||
		refused != 1 {
		t.Fatalf("request %d is refused: %v", refused, refusal)
	}
	for _, kind := range []RequestKind{Commit, Extend, Release} {
		_, _, refusal := l.Decide(h, []LedgerRequest{onHold(kind, "r", 6, time.Hour)})
		if refusal == nil || refusal.Code != "reservation_not_found" {
			t.Errorf("request %d about a hold that was undone: %v, want reservation_not_found", kind, refusal)
		}
	}
}

// A reservation whose change is undone is as it was before.
func TestP7_AChangeThatIsUndoneLeavesTheReservation(t *testing.T) {
	h := granting(quota("calls", 10, LimitHard, ResetMonthly))
	for _, kind := range []RequestKind{Commit, Release} {
		l := NewLedger(ledgerTime)
		if _, _, refusal := l.Decide(h, []LedgerRequest{holdFor("r", 6, time.Hour)}); refusal != nil {
			t.Fatal(refusal)
		}
		if _, refused, refusal := l.Decide(h, []LedgerRequest{onHold(kind, "r", 6, 0), holdFor("s", 11, time.Hour)}); refusal == nil ||
			refused != 1 {
			t.Fatalf("request %d is refused: %v", refused, refusal)
		}
		granted, _, refusal := l.Decide(h, []LedgerRequest{onHold(Release, "r", 0, 0)})
		if refusal != nil || granted[0].Held.Sign() != 0 || granted[0].Used.Sign() != 0 {
			t.Errorf("after request %d was undone, the reservation cannot be released: %v", kind, refusal)
		}
	}
}

// An extension asks for a time from now, and never ends a hold earlier than before.
func TestP7_AnExtensionNeverShortensAHold(t *testing.T) {
	h, l := granting(quota("calls", 10, LimitHard, ResetMonthly)), NewLedger(ledgerTime)
	if _, _, refusal := l.Decide(h, []LedgerRequest{holdFor("r", 6, time.Hour)}); refusal != nil {
		t.Fatal(refusal)
	}
	for _, c := range []struct{ now, lasts, want time.Duration }{
		{10 * time.Minute, time.Minute, time.Hour},
		{10 * time.Minute, 2 * time.Hour, 130 * time.Minute},
		{20 * time.Minute, time.Hour, 130 * time.Minute},
	} {
		l.DecideAt(ledgerTime.Add(c.now))
		granted, _, refusal := l.Decide(h, []LedgerRequest{onHold(Extend, "r", 0, c.lasts)})
		if refusal != nil {
			t.Fatal(refusal)
		}
		if s := granted[0].Reservation; s.State != events.StateHeld || !s.ExpiresAt.Equal(ledgerTime.Add(c.want)) {
			t.Errorf("extended after %s for %s: %s until %s, want %s", c.now, c.lasts, s.State, s.ExpiresAt.Sub(ledgerTime), c.want)
		}
	}
}

// A reservation ends once, by a request of its feature, and expires at its time. Only a commit with the overage is above the held amount.
func TestP7_AReservationEndsOnce(t *testing.T) {
	h := granting(quota("calls", 10, LimitHard, ResetMonthly), quota("other", 10, LimitHard, ResetMonthly))
	overage, elsewhere := onHold(Commit, "r", 7, 0), onHold(Release, "r", 6, 0)
	overage.Overage, elsewhere.Feature = true, "other"
	for name, c := range map[string]struct {
		after time.Duration
		end   LedgerRequest
		code  string
		used  string
	}{
		"a commit":                   {0, onHold(Commit, "r", 4, 0), "", "4"},
		"all of it":                  {0, onHold(Commit, "r", 6, 0), "", "6"},
		"above the hold":             {0, onHold(Commit, "r", 7, 0), "amount_exceeds_hold", "0"},
		"above it, with the overage": {0, overage, "", "7"},
		"a release":                  {2 * time.Hour, onHold(Release, "r", 6, 0), "", "0"},
		"an expiry":                  {time.Hour, onHold(Expire, "r", 6, 0), "", "0"},
		"an expiry before its time":  {time.Hour - 1, onHold(Expire, "r", 6, 0), "reservation_not_found", "0"},
		"by another feature":         {0, elsewhere, "reservation_not_found", "0"},
		"of another id":              {0, onHold(Release, "s", 6, 0), "reservation_not_found", "0"},
	} {
		l := NewLedger(ledgerTime)
		if _, _, refusal := l.Decide(h, []LedgerRequest{holdFor("r", 6, time.Hour)}); refusal != nil {
			t.Fatal(refusal)
		}
		l.DecideAt(ledgerTime.Add(c.after))
		_, _, refusal := l.Decide(h, []LedgerRequest{c.end})
		a, held := l.account(AccountKey{ledgerTenant, "calls", "2026-05"}), map[bool]string{true: "0", false: "6"}[c.code == ""]
		decided := refusal == nil && c.code == "" || refusal != nil && refusal.Code == c.code
		if !decided || a.Used.String() != c.used || a.Held.String() != held {
			t.Errorf("%s: %v, used %s and held %s", name, refusal, &a.Used, &a.Held)
		}
		for _, kind := range []RequestKind{Commit, Extend, Release, Expire} {
			if c.code != "" {
				continue
			}
			_, _, refusal := l.Decide(h, []LedgerRequest{onHold(kind, "r", 1, time.Hour)})
			if refusal == nil || refusal.Code != "reservation_ended" {
				t.Errorf("%s, then request %d: %v", name, kind, refusal)
			}
		}
		if a := l.account(AccountKey{ledgerTenant, "calls", "2026-05"}); a.Used.String() != c.used || a.Held.String() != held {
			t.Errorf("%s: later requests leave used %s and held %s", name, &a.Used, &a.Held)
		}
	}
}
