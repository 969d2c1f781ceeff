package domain

import (
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// AccountKey names the account of a QUOTA feature in a period. An account holds no subscription and no limit: what
// is used stays used when the plan changes.
type AccountKey struct {
	TenantID           uuid.UUID
	Feature, PeriodKey string
}

// Account is the amount that a tenant has used in a period, and the amount that its reservations hold. Both are sums
// without a bound.
type Account struct{ Used, Held big.Int }

// LedgerRequest asks to use an amount of a feature, to hold one, or to change a reservation.
type LedgerRequest struct {
	Kind     RequestKind
	TenantID uuid.UUID
	Feature  string
	Amount   int64
	// At is the time of usage that has one, which may be any; nil: the usage is of the time of the decision.
	At *time.Time
	// The members below are of requests about a reservation.
	ReservationID string
	Lasts         time.Duration // of Hold and Extend
	EventID       string        // of Commit: the id of its usage
	Overage       bool          // of Commit: the amount may be above the held one
}

// Decision is a granted request: its verdict, and the account after it.
type Decision struct {
	Refusal *Error // nil: granted; else the other members are empty
	Verdict
	At          time.Time // of the usage
	Limit       *int64    // nil: no limit
	Used, Held  *big.Int  // nil: METERED features have no account
	Account     *events.AccountChange
	Reservation *events.ReservationState // after the request; nil: it is about no reservation
	HeldAmount  int64                    // of Commit: the amount that is held no longer
}

// Ledger decides requests in their turn, on accounts that no one else changes meanwhile (P7). A request
// is granted if the limit is not HARD, or if used + held + amount is not above it.
type Ledger struct {
	at           time.Time
	accounts     map[AccountKey]*Account
	reservations map[ReservationKey]*events.ReservationState
	periods      map[uuid.UUID]*PeriodHistory // of tenants with closed periods
	undo         []func()                     // of the decisions that are granted together, so far
}

// NewLedger returns a ledger that decides at a time, that of the deciding instance.
func NewLedger(at time.Time) *Ledger {
	return &Ledger{at: at, accounts: map[AccountKey]*Account{}, reservations: map[ReservationKey]*events.ReservationState{}}
}

// DecideAt sets the time of the decisions: a ledger whose accounts are locked later decides at the time of the lock.
func (l *Ledger) DecideAt(at time.Time) { l.at = at }

// Load sets the state of an account before the first decision.
func (l *Ledger) Load(key AccountKey, a *Account) { l.accounts[key] = a }

// LoadPeriods sets the changes of a tenant's periods before the first decision; without them all are open.
func (l *Ledger) LoadPeriods(tenant uuid.UUID, h *PeriodHistory) {
	if l.periods == nil {
		l.periods = map[uuid.UUID]*PeriodHistory{}
	}
	l.periods[tenant] = h
}

// Has reports whether an account is loaded.
func (l *Ledger) Has(key AccountKey) bool { return l.accounts[key] != nil }

// Account returns the key of the account that a request to use or to hold needs; not ok if it needs no account.
func (l *Ledger) Account(h History, r LedgerRequest) (key AccountKey, ok bool) {
	if !r.Kind.NeedsRoom() {
		return AccountKey{}, false
	}
	_, g, refusal := l.entitled(h, r)
	if refusal != nil || g.Type != FeatureQuota {
		return AccountKey{}, false
	}
	return AccountKey{r.TenantID, r.Feature, PeriodKey(g.ResetPeriod, l.timeOf(r))}, true
}

// Used returns a copy of the used amount of an account; nil if it is not loaded.
func (l *Ledger) Used(key AccountKey) *big.Int {
	if a := l.accounts[key]; a != nil {
		return new(big.Int).Set(&a.Used)
	}
	return nil
}

func (l *Ledger) timeOf(r LedgerRequest) time.Time {
	if r.At == nil {
		return l.at
	}
	return *r.At
}

// entitled finds the grant for a request. A request without a time of its own is decided on the last change in the log: by
// time, a change would not hold yet if its instance's clock is ahead, or if the request has waited for the lock.
func (l *Ledger) entitled(h History, r LedgerRequest) (*Subscription, *Grant, *Error) {
	if r.At == nil && len(h) > 0 {
		h = h[len(h)-1:]
	}
	return Entitled(h, wholeHistory, r.Feature, l.timeOf(r))
}

// Present returns the grant whose limit decides about usage that the grant of its time counts: that of the present subscription,
// so that no timestamp chooses an older limit, or none. Without a present grant of the same account it is that of its time.
func (h History) Present(feature string, ofItsTime *Grant) *Grant {
	if s := h.current(wholeHistory); s.AcceptsUsage() {
		if g := s.Grant(feature); g != nil && g.ResetPeriod == ofItsTime.ResetPeriod {
			return g
		}
	}
	return ofItsTime
}

// Enforced reports whether usage is refused above the limit of a grant.
func Enforced(g *Grant) bool {
	return g.Type == FeatureQuota && g.OnIngest == OnIngestEnforce && g.LimitBehavior == LimitHard && g.Limit != nil
}

// wholeHistory is after every position: requests are decided on the present state.
const wholeHistory = int64(^uint64(0) >> 1)

// Decide decides all requests of a tenant in their turn. If one is refused no request takes effect, and it returns the index and the
// refusal of the first refused one. The refusals are those of Entitled, period_closed, quota_exceeded with the account, and those of
// reservations. An account that is not loaded is at zero.
func (l *Ledger) Decide(h History, requests []LedgerRequest) (decisions []Decision, refused int, refusal *Error) {
	l.undo, refused = l.undo[:0], -1
	decisions = make([]Decision, len(requests))
	for i := range requests {
		d := &decisions[i]
		if *d, d.Refusal = l.decide(h, &requests[i]); d.Refusal != nil && refusal == nil {
			refused, refusal = i, d.Refusal
		}
	}
	if refusal != nil {
		for _, undo := range slices.Backward(l.undo) {
			undo()
		}
	}
	return decisions, refused, refusal
}

func (l *Ledger) decide(h History, r *LedgerRequest) (Decision, *Error) {
	switch r.Kind {
	case Commit:
		return l.commit(h, r)
	case Extend, Release, Expire:
		return l.change(h, r)
	}
	return l.use(h, r)
}

// use decides a request to use or to hold an amount.
func (l *Ledger) use(h History, r *LedgerRequest) (Decision, *Error) {
	at := l.timeOf(*r)
	s, g, refusal := l.entitled(h, *r)
	if refusal != nil {
		return Decision{}, refusal
	}
	g = h.Present(r.Feature, g)
	d := Decision{Verdict: Verdict{SubscriptionID: s.ID, FeatureType: g.Type, PeriodKey: PeriodKey(g.ResetPeriod, at)}, At: at,
		Limit: g.Limit}
	if periods := l.periods[r.TenantID]; periods != nil {
		if refusal := periods.RefuseLate(d.PeriodKey); refusal != nil {
			return Decision{}, refusal
		}
	}
	if g.Type == FeatureQuota {
		a := l.account(AccountKey{r.TenantID, r.Feature, d.PeriodKey})
		after := new(big.Int).Add(&a.Used, &a.Held)
		after.Add(after, big.NewInt(r.Amount))
		if g.Limit != nil && g.LimitBehavior == LimitHard && (r.Kind != Enforce || Enforced(g)) && after.Cmp(big.NewInt(*g.Limit)) > 0 {
			return Decision{}, quotaExceeded(*r, d.PeriodKey, *g.Limit, a)
		}
	}
	if r.Kind == Hold {
		return l.hold(r, d), nil
	}
	l.apply(&d, r.TenantID, r.Feature, r.Amount, 0)
	return d, nil
}

// apply adds to the account of a decision, whose feature and period are known by then.
func (l *Ledger) apply(d *Decision, tenant uuid.UUID, feature string, used, held int64) {
	if d.FeatureType != FeatureQuota {
		return
	}
	a := l.account(AccountKey{tenant, feature, d.PeriodKey})
	add := func(sign int64) {
		a.Used.Add(&a.Used, big.NewInt(sign*used))
		a.Held.Add(&a.Held, big.NewInt(sign*held))
	}
	add(1)
	l.undo = append(l.undo, func() { add(-1) })
	d.Used, d.Held = new(big.Int).Set(&a.Used), new(big.Int).Set(&a.Held)
	d.Account = &events.AccountChange{Feature: feature, PeriodKey: d.PeriodKey, Used: used, Held: held}
}

func (l *Ledger) account(key AccountKey) *Account {
	a := l.accounts[key]
	if a == nil {
		a = new(Account)
		l.accounts[key] = a
	}
	return a
}

// Quota is an account beside its limit.
type Quota struct {
	Limit, Used, Held *big.Int
	PeriodKey         string
}

// Remaining returns the amount that can still be granted, never below 0.
func (q *Quota) Remaining() *big.Int { return Remaining(q.Limit, q.Used, q.Held) }

// Remaining returns limit − used − held, or 0 if that is negative: recorded usage may have passed the limit, or the
// limit was lowered.
func Remaining(limit, used, held *big.Int) *big.Int {
	left := new(big.Int).Sub(limit, used)
	if left.Sub(left, held).Sign() < 0 {
		left.SetInt64(0)
	}
	return left
}

func quotaExceeded(r LedgerRequest, period string, limit int64, a *Account) *Error {
	q := &Quota{Limit: big.NewInt(limit), Used: new(big.Int).Set(&a.Used), Held: new(big.Int).Set(&a.Held), PeriodKey: period}
	return &Error{Code: "quota_exceeded", Pointer: "/amount", Quota: q,
		Message: "The limit of " + r.Feature + " does not allow this amount: " + q.Remaining().String() + " of " + q.Limit.String() +
			" remain in the period " + period + "; nothing was recorded"}
}
