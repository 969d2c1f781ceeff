package domain

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
)

// ledgerModel has the accounts and reservations of a tenant. An account is named by its feature and month. held is the amount of earlier
// reservations, which never end.
type ledgerModel struct {
	codes      map[string]string   // of features that are always refused
	limits     map[string]*big.Int // HARD limits
	used, held map[string]*big.Int // by account
	holds      map[string]modelHold
}

type modelHold struct {
	feature, account, state string
	amount                  int64
	until                   time.Time
}

// decide grants a unit on a copy, or refuses it. Before a refusal for a held amount the holds of the account whose time is over end.
func (m *ledgerModel) decide(at time.Time, unit []LedgerRequest) (after []string, refused int, code string) {
	for ended := true; ended; {
		try := &ledgerModel{m.codes, m.limits, maps.Clone(m.used), m.held, maps.Clone(m.holds)}
		after, refused, code, ended = nil, -1, "", false
		for i, r := range unit {
			account, refusal := try.one(at, r)
			if refusal != "" {
				refused, code = i, refusal
				ended = refusal == "quota_exceeded" && m.expire(at, account)
				break
			}
			after = append(after, try.sums(account))
		}
		if code == "" {
			m.used, m.holds = try.used, try.holds
		}
	}
	return after, refused, code
}

func (m *ledgerModel) expire(at time.Time, account string) (ended bool) {
	for id, h := range m.holds {
		if h.account == account && h.state == events.StateHeld && !h.until.After(at) {
			h.state, ended = events.StateExpired, true
			m.holds[id] = h
		}
	}
	return ended
}

// one decides a request.
func (m *ledgerModel) one(at time.Time, r LedgerRequest) (account, refusal string) {
	h, takes := m.holds[r.ReservationID], r.Kind.NeedsRoom()
	if takes {
		h = modelHold{r.Feature, r.Feature + at.Format(" 2006-01"), events.StateHeld, r.Amount, at.Add(r.Lasts)}
	}
	used, held := m.of(h.account)
	after, limit := new(big.Int).Add(used, big.NewInt(r.Amount)), m.limits[r.Feature]
	switch {
	case takes && m.codes[r.Feature] != "":
		return h.account, m.codes[r.Feature]
	case takes && r.Kind != Enforce && limit != nil && new(big.Int).Add(after, held).Cmp(limit) > 0:
		return h.account, "quota_exceeded"
	case h.feature != r.Feature, r.Kind == Expire && h.state == events.StateHeld && h.until.After(at):
		return h.account, "reservation_not_found"
	case h.state != events.StateHeld:
		return h.account, "reservation_ended"
	case r.Kind == Commit && r.Amount > h.amount && !r.Overage:
		return h.account, "amount_exceeds_hold"
	case r.Kind == Extend && at.Add(r.Lasts).After(h.until):
		h.until = at.Add(r.Lasts)
	}
	if r.Kind == Use || r.Kind == Enforce || r.Kind == Commit {
		m.used[h.account] = after
	}
	if end, ends := map[RequestKind]string{Commit: events.StateCommitted, Release: events.StateReleased, Expire: events.StateExpired}[r.Kind]; ends {
		h.state = end
	}
	if r.ReservationID != "" {
		m.holds[r.ReservationID] = h
	}
	return h.account, ""
}

// of returns the used and held amounts of an account.
func (m *ledgerModel) of(account string) (used, held *big.Int) {
	sum := func(of *big.Int) *big.Int {
		if of == nil {
			return new(big.Int)
		}
		return new(big.Int).Set(of)
	}
	used, held = sum(m.used[account]), sum(m.held[account])
	for _, h := range m.holds {
		if h.account == account && h.state == events.StateHeld {
			held.Add(held, big.NewInt(h.amount))
		}
	}
	return used, held
}

func (m *ledgerModel) sums(account string) string {
	used, held := m.of(account)
	return fmt.Sprint(used, " ", held)
}

// ledgerStore is the state from which the ledger of each group is loaded. Only decisions change it.
type ledgerStore struct {
	accounts     map[AccountKey]*Account
	reservations map[string]*events.ReservationState
}

// decide decides a unit as the log does: before a refusal for a held amount, due reservations of the account expire.
func (s *ledgerStore) decide(t *rapid.T, l *Ledger, h History, unit []LedgerRequest) ([]Decision, int, *Error) {
	for {
		granted, refused, refusal := l.Decide(h, unit)
		s.apply(granted)
		if refusal == nil || refusal.Quota == nil {
			return granted, refused, refusal
		}
		ended := false
		for _, id := range slices.Sorted(maps.Keys(s.reservations)) {
			r := s.reservations[id]
			if r.Feature != unit[refused].Feature || r.PeriodKey != refusal.Quota.PeriodKey || !l.IsDue(ledgerTenant, id) {
				continue
			}
			expired, _, refusal := l.Decide(h, []LedgerRequest{{Kind: Expire, TenantID: ledgerTenant, Feature: r.Feature, ReservationID: id}})
			if refusal != nil {
				t.Fatalf("%s is due, and not expired: %v", id, refusal)
			}
			s.apply(expired)
			ended = true
		}
		if !ended {
			return granted, refused, refusal
		}
	}
}

func (s *ledgerStore) apply(granted []Decision) {
	for _, d := range granted {
		if c := d.Account; c != nil {
			key := AccountKey{ledgerTenant, c.Feature, c.PeriodKey}
			if s.accounts[key] == nil {
				s.accounts[key] = new(Account)
			}
			a := s.accounts[key]
			a.Used.Add(&a.Used, big.NewInt(c.Used))
			a.Held.Add(&a.Held, big.NewInt(c.Held))
		}
		if r := d.Reservation; r != nil {
			s.reservations[r.ID] = r
		}
	}
}

// ledger loads the state as the log does for each group.
func (s *ledgerStore) ledger(at time.Time) *Ledger {
	l := NewLedger(at)
	for key, a := range s.accounts {
		of := new(Account)
		of.Used.Set(&a.Used)
		of.Held.Set(&a.Held)
		l.Load(key, of)
	}
	for _, r := range s.reservations {
		state := *r
		l.LoadReservation(ledgerTenant, &state)
	}
	return l
}

// drawSum draws a sum of an account: small, or past 64 bits.
func drawSum(t *rapid.T, label string) *big.Int {
	n := big.NewInt(rapid.Int64Range(0, 12).Draw(t, label))
	if rapid.IntRange(0, 11).Draw(t, label+" is large") == 0 {
		n.Add(n, new(big.Int).Lsh(big.NewInt(1), 70))
	}
	return n
}

// drawAmount draws an amount, one time of eight a large one.
func drawAmount(t *rapid.T) int64 {
	if rapid.IntRange(0, 7).Draw(t, "large") == 0 {
		return rapid.Int64Range(MaxAmount-12, MaxAmount).Draw(t, "amount")
	}
	return rapid.Int64Range(1, 12).Draw(t, "amount")
}

// drawRequest draws a request. Requests about a reservation name one of the model, mostly by its feature and amount.
func drawRequest(t *rapid.T, m *ledgerModel) LedgerRequest {
	r := ledgerRequest(rapid.SampledFrom([]string{"hard", "hard", "hard", "hard", "other", "soft", "open", "metered", "flag", "nothing"}).Draw(t, "feature"), drawAmount(t))
	r.Kind = rapid.SampledFrom([]RequestKind{Use, Enforce, Hold, Hold, Hold, Commit, Commit, Extend, Release, Expire}).Draw(t, "kind")
	if r.Kind == Use || r.Kind == Enforce {
		return r
	}
	r.ReservationID = "r" + rapid.StringMatching(`[a-z]`).Draw(t, "id")
	r.Lasts = time.Duration(rapid.IntRange(1, 2*86400).Draw(t, "lasts")) * time.Second
	if r.Kind == Hold {
		return r
	}
	if ids := slices.Sorted(maps.Keys(m.holds)); len(ids) > 0 {
		r.ReservationID = rapid.SampledFrom(ids).Draw(t, "of")
		h := m.holds[r.ReservationID]
		if rapid.IntRange(0, 15).Draw(t, "by its feature") > 0 {
			r.Feature = h.feature
		}
		if rapid.Bool().Draw(t, "at most its amount") {
			r.Amount = min(r.Amount, h.amount)
		}
	}
	if r.Kind == Commit {
		r.EventID, r.Overage = "use", rapid.Bool().Draw(t, "overage")
	}
	return r
}

// drawUnit draws requests that are granted together. The log refuses holds whose keys are known.
func drawUnit(t *rapid.T, m *ledgerModel) []LedgerRequest {
	var held []string
	list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) LedgerRequest { return drawRequest(t, m) }), 1, rapid.SampledFrom([]int{1, 1, 4}).Draw(t, "at most")).Draw(t, "requests")
	return slices.DeleteFunc(list, func(r LedgerRequest) bool {
		known := r.Kind == Hold && (m.holds[r.ReservationID].state != "" || slices.Contains(held, r.ReservationID))
		held = append(held, r.ReservationID)
		return known
	})
}

// Random groups of requests, alone and together, have the outcomes of the model: first fit, all requests of a unit or
// no request, each reservation ended once. A due reservation causes no refusal. The sums of the decisions are the accounts.
func TestP7_TheLedgerDecidesAsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hard := rapid.OneOf(rapid.Int64Range(0, 80), rapid.Int64Range(MaxAmount-2, MaxAmount)).Draw(t, "limit")
		h := granting(quota("hard", hard, LimitHard, ResetMonthly), quota("other", 20, LimitHard, ResetMonthly), quota("soft", 5, LimitSoft, ResetMonthly),
			quota("open", -1, LimitHard, ResetMonthly), featureOf(FeatureMetered, "metered"), featureOf(FeatureBoolean, "flag"))
		m := &ledgerModel{codes: map[string]string{"flag": "not_entitled", "nothing": "feature_not_found"}, limits: map[string]*big.Int{"hard": big.NewInt(hard), "other": big.NewInt(20)},
			used: map[string]*big.Int{}, held: map[string]*big.Int{}, holds: map[string]modelHold{}}
		s := &ledgerStore{map[AccountKey]*Account{}, map[string]*events.ReservationState{}}
		for _, feature := range []string{"hard", "other", "soft", "open"} {
			a, account := new(Account), feature+" 2026-05"
			m.used[account], m.held[account] = drawSum(t, feature+" used"), drawSum(t, feature+" held")
			a.Used.Set(m.used[account])
			a.Held.Set(m.held[account])
			s.accounts[AccountKey{ledgerTenant, feature, "2026-05"}] = a
		}
		at := time.Date(2026, 5, 28, 12, 0, 0, 0, time.UTC)
		for range rapid.IntRange(1, 6).Draw(t, "groups") {
			at = at.Add(time.Duration(rapid.IntRange(0, 3*86400).Draw(t, "later")) * time.Second)
			l := s.ledger(at)
			for range rapid.IntRange(1, 12).Draw(t, "units") {
				checkUnit(t, s, l, h, m, at, drawUnit(t, m))
			}
			for key, a := range s.accounts {
				if got, want := fmt.Sprint(&a.Used, " ", &a.Held), m.sums(key.Feature+" "+key.PeriodKey); got != want {
					t.Fatalf("%s in %s has %s instead of %s", key.Feature, key.PeriodKey, got, want)
				}
			}
			for id, hold := range m.holds {
				if r := s.reservations[id]; r == nil || r.State != hold.state || !r.ExpiresAt.Equal(hold.until) {
					t.Fatalf("%s is %+v instead of %+v", id, r, hold)
				}
			}
		}
	})
}

// checkUnit decides a unit by the ledger and by the model.
func checkUnit(t *rapid.T, s *ledgerStore, l *Ledger, h History, m *ledgerModel, at time.Time, unit []LedgerRequest) {
	want, refused, code := m.decide(at, unit)
	granted, first, refusal := s.decide(t, l, h, unit)
	if first != refused || len(granted) != len(want) && code == "" || (refusal == nil) != (code == "") || refusal != nil && refusal.Code != code {
		t.Fatalf("%+v: granted %v, refused %d %v; the model %v, %d %s", unit, granted, first, refusal, want, refused, code)
	}
	if code == "quota_exceeded" && refused == 0 {
		limit := m.limits[unit[0].Feature]
		used, held := m.of(unit[0].Feature + at.Format(" 2006-01"))
		if q := refusal.Quota; q.Used.Cmp(used) != 0 || q.Held.Cmp(held) != 0 || q.Remaining().Cmp(Remaining(limit, used, held)) != 0 {
			t.Fatalf("%+v is refused with the account %+v instead of %s and %s", unit[0], q, used, held)
		}
	}
	for i, d := range granted {
		if got := fmt.Sprint(d.Used, " ", d.Held); d.FeatureType == FeatureQuota && got != want[i] || d.FeatureType != FeatureQuota && (d.Used != nil || d.Account != nil) {
			t.Fatalf("%+v is granted as %+v instead of %s", unit[i], d, want[i])
		}
	}
}
