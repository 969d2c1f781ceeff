package domain

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// RequestKind is one of the constants below.
type RequestKind int

// Kinds of requests to a ledger.
const (
	Use     RequestKind = iota // use an amount: consume
	Enforce                    // record usage that has happened: only a grant that enforces its limit refuses it
	Hold                       // hold an amount until it is committed or released, or expires
	Commit                     // use at most the held amount, and release the rest
	Extend                     // hold it longer
	Release                    // end the reservation without usage
	Expire                     // end a reservation whose time is over
)

// ReservationsKept is the time for which the state of an ended reservation is kept. Later its events show it.
const ReservationsKept = 7 * 24 * time.Hour

// NeedsRoom reports whether requests of the kind need a grant, and room below its limit.
func (k RequestKind) NeedsRoom() bool { return k == Use || k == Enforce || k == Hold }

// ReservationKey names a reservation.
type ReservationKey struct {
	TenantID uuid.UUID
	ID       string
}

// AccountOf returns the key of the account that holds a reservation's amount; not ok for METERED features, which have no
// account.
func AccountOf(tenant uuid.UUID, s *events.ReservationState) (key AccountKey, ok bool) {
	return AccountKey{tenant, s.Feature, s.PeriodKey}, s.FeatureType == FeatureQuota
}

// LoadReservation sets the state of a reservation before the first decision about it; a later state stays.
func (l *Ledger) LoadReservation(tenant uuid.UUID, s *events.ReservationState) {
	key := ReservationKey{tenant, s.ID}
	if l.reservations[key] == nil {
		l.reservations[key] = s
	}
}

// IsDue reports whether a reservation, as the ledger knows it, is held and its time is over.
func (l *Ledger) IsDue(tenant uuid.UUID, id string) bool {
	s := l.reservations[ReservationKey{tenant, id}]
	return s != nil && s.State == events.StateHeld && !s.ExpiresAt.After(l.at)
}

// At returns the time of the decisions.
func (l *Ledger) At() time.Time { return l.at }

// hold begins a reservation for which there is room.
func (l *Ledger) hold(r *LedgerRequest, d Decision) Decision {
	l.apply(&d, r.TenantID, r.Feature, 0, r.Amount)
	d.Reservation = l.become(r.TenantID, &events.ReservationState{
		ID: r.ReservationID, Feature: r.Feature, PeriodKey: d.PeriodKey, SubscriptionID: d.SubscriptionID, FeatureType: d.FeatureType,
		Amount: r.Amount, Limit: d.Limit, State: events.StateHeld, ExpiresAt: l.expiry(r),
	})
	return d
}

func (l *Ledger) expiry(r *LedgerRequest) time.Time {
	return l.at.Add(r.Lasts).UTC().Truncate(time.Microsecond)
}

// commit decides a request to use at most the held amount. It counts in the subscription and the period of the hold.
func (l *Ledger) commit(h History, r *LedgerRequest) (Decision, *Error) {
	before, refusal := l.held(r)
	if refusal != nil {
		return Decision{}, refusal
	}
	if r.Amount > before.Amount && !r.Overage {
		return Decision{}, &Error{Code: "amount_exceeds_hold", Pointer: "/amount",
			Message: "The reservation holds less than this amount; " +
				`commit at most the held amount, or send "overage":"record" if more has been used`}
	}
	after := *before
	after.State, after.EventID, after.Committed = events.StateCommitted, r.EventID, r.Amount
	return l.end(h, r, &after, r.Amount), nil
}

// change decides the requests that use no amount: extend, release, expire.
func (l *Ledger) change(h History, r *LedgerRequest) (Decision, *Error) {
	before, refusal := l.held(r)
	if refusal != nil {
		return Decision{}, refusal
	}
	after := *before
	switch r.Kind {
	case Extend:
		if until := l.expiry(r); until.After(after.ExpiresAt) { // it is never held for a shorter time
			after.ExpiresAt = until
		}
		d := l.of(h, r, &after)
		l.apply(&d, r.TenantID, after.Feature, 0, 0)
		d.Account, d.Reservation = nil, l.become(r.TenantID, &after)
		return d, nil
	case Expire:
		if before.ExpiresAt.After(l.at) {
			return Decision{}, ReservationNotFound() // none whose time is over
		}
		after.State = events.StateExpired
	default:
		after.State = events.StateReleased
	}
	return l.end(h, r, &after, 0), nil
}

// end ends a reservation, whose amount is held no longer.
func (l *Ledger) end(h History, r *LedgerRequest, after *events.ReservationState, used int64) Decision {
	d := l.of(h, r, after)
	l.apply(&d, r.TenantID, after.Feature, used, -after.Amount)
	d.Reservation, d.HeldAmount = l.become(r.TenantID, after), after.Amount
	return d
}

// of returns the verdict of a reservation, with the limit that is in force now for its account, or that of its
// grant if no present grant has this account.
func (l *Ledger) of(h History, r *LedgerRequest, s *events.ReservationState) Decision {
	d := Decision{Verdict: Verdict{SubscriptionID: s.SubscriptionID, FeatureType: s.FeatureType, PeriodKey: s.PeriodKey}, At: l.timeOf(*r),
		Limit: s.Limit}
	if _, g, refusal := l.entitled(h, *r); refusal == nil && countsIn(g, s.PeriodKey) {
		d.Limit = g.Limit
	}
	return d
}

// held returns the reservation of a request if it is held.
func (l *Ledger) held(r *LedgerRequest) (*events.ReservationState, *Error) {
	s := l.reservations[ReservationKey{r.TenantID, r.ReservationID}]
	switch {
	case s == nil || s.Feature != r.Feature:
		return nil, ReservationNotFound()
	case s.State != events.StateHeld:
		return nil, ReservationEnded(s.State)
	}
	return s, nil
}

// ReservationNotFound is the refusal of requests about a reservation that a tenant does not have for the feature.
func ReservationNotFound() *Error {
	return &Error{Code: "reservation_not_found", Message: "The feature has no reservation with this id; ended ones are kept for 7 days"}
}

// ReservationEnded is the refusal of requests about a reservation that is held no longer.
func ReservationEnded(state string) *Error {
	return &Error{Code: "reservation_ended", State: state,
		Message: "The reservation is " + state + " and holds nothing; hold the amount again under another reservationId"}
}

func (l *Ledger) become(tenant uuid.UUID, s *events.ReservationState) *events.ReservationState {
	key := ReservationKey{tenant, s.ID}
	before := l.reservations[key]
	l.reservations[key] = s
	l.undo = append(l.undo, func() { l.reservations[key] = before })
	return s
}
