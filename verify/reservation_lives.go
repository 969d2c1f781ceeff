package verify

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// endsKept is the time for which an ended reservation is kept in memory: a day longer than the service keeps its row.
const endsKept = 8 * 24 * time.Hour

// reservationKey names a reservation. An id is of one feature.
type reservationKey struct {
	tenant uuid.UUID
	id     string
}

// reservation is a reservation after its last event so far, as the table has it.
type reservation struct {
	feature, period, featureType string
	subscription                 uuid.UUID
	amount                       int64
	limit                        int64 // of its grant; noLimit: none
	state                        string
	expires                      int64 // microseconds of Unix
	heldAt, endedAt              int64 // positions
	ended                        int64 // time at which the end was recorded, in microseconds of Unix
	eventID                      string
	committed                    int64
}

const (
	noLimit = -1
	isHeld  = "HELD"
)

// reservationEvent is an event about a reservation that is not a commit.
type reservationEvent struct {
	admission
	Feature   string
	Amount    int64
	ExpiresAt time.Time
}

// addReservation follows a reservation that is held, extended, released or expired.
func (x *pass) addReservation(r *row) {
	x.quotaGrants.n++
	var e reservationEvent
	if err := json.Unmarshal(r.body, &e); err != nil {
		x.reservationLives.fault("the reservation at %s cannot be read: %v", x.at(r.position), err)
		return
	}
	of := figure{tenant: r.tenant, feature: e.Feature, period: e.PeriodKey}
	key := reservationKey{r.tenant, e.ReservationID}
	if r.subject == reservationHeld {
		x.hold(r, key, &e)
		e.By = byHold
	} else {
		x.change(r, key, &e)
	}
	if e.FeatureType == "QUOTA" {
		switch r.subject {
		case reservationHeld:
			x.accounts.addHeld(of, e.Amount)
		case reservationReleased, reservationExpired:
			x.accounts.addHeld(of, -e.Amount)
		}
	}
	records := x.recordsAccount(r, of, &e.admission)
	switch {
	case r.subject != reservationHeld:
	case records:
		x.checkLimit(r, of, &e.admission)
	default:
		x.checkGranted(r, of, &e.admission)
	}
}

// hold begins a reservation.
func (x *pass) hold(r *row, key reservationKey, e *reservationEvent) {
	x.reservationLives.n++
	x.reservationLives.expect(string(r.key) == "h/"+key.id, "the hold at %s of %.60q has the key %.60q", x.at(r.position), key.id, r.key)
	if before := x.accounts.reservations[key]; before != nil {
		x.reservationLives.fault("%.60q is held at %s and again at %s", key.id, x.at(before.heldAt), x.at(r.position))
	}
	held := &reservation{feature: e.Feature, period: e.PeriodKey, featureType: e.FeatureType, subscription: e.SubscriptionID,
		amount: e.Amount, limit: noLimit,
		state: isHeld, expires: e.ExpiresAt.UnixMicro(), heldAt: r.position}
	if e.Limit != nil {
		held.limit = *e.Limit
	}
	x.accounts.reservations[key] = held
}

// open returns the reservation of an event if it is held.
func (x *pass) open(r *row, key reservationKey) *reservation {
	switch now := x.accounts.reservations[key]; {
	case now == nil:
		x.reservationLives.fault("%s is about %.60q, which is not held", x.at(r.position), key.id)
	case now.state != isHeld:
		x.reservationLives.fault("%s is about %.60q, which is %s since %s", x.at(r.position), key.id, now.state, x.at(now.endedAt))
	default:
		return now
	}
	return nil
}

// sameHold checks that an event repeats the members of the hold.
func (x *pass) sameHold(r *row, now *reservation, feature string, amount int64, g *admission) {
	x.reservationLives.expect(now.feature == feature && now.period == g.PeriodKey && now.featureType == g.FeatureType &&
		now.subscription == g.SubscriptionID && now.amount == amount,
		"%s has %d of %s in %s, subscription %s; the hold at %s has %d of %s in %s, subscription %s", x.at(r.position), amount, feature,
		g.PeriodKey, g.SubscriptionID,
		x.at(now.heldAt), now.amount, now.feature, now.period, now.subscription)
	var granted *int64
	if now.limit != noLimit {
		granted = &now.limit
	}
	want := x.accounts.limitInForce(r.tenant, now, granted)
	// Without a readable history a reservation ends by the limit of its grant.
	x.quotaGrants.expect(sameLimit(want, g.Limit) || sameLimit(granted, g.Limit), "%s records the limit %s, the log has %s",
		x.at(r.position), limitOf(g.Limit), limitOf(want))
}

// change extends a reservation, or ends it without usage.
func (x *pass) change(r *row, key reservationKey, e *reservationEvent) {
	now := x.open(r, key)
	if now == nil {
		return
	}
	x.sameHold(r, now, e.Feature, e.Amount, &e.admission)
	expires, state := e.ExpiresAt.UnixMicro(), "RELEASED"
	switch r.subject {
	case reservationExtended:
		x.reservationLives.expect(expires >= now.expires, "%s shortens %.60q: it lasts until %s, before until %s", x.at(r.position), key.id,
			e.ExpiresAt, time.UnixMicro(now.expires).UTC())
		now.expires = expires
		return
	case reservationExpired:
		state = "EXPIRED"
		x.reservationLives.expect(!moment(r.occurred).Before(e.ExpiresAt), "%.60q expired at %s, at %s, before its time %s", key.id,
			x.at(r.position), moment(r.occurred), e.ExpiresAt)
	}
	x.reservationLives.expect(expires == now.expires, "%s has %s as the time of %.60q, which lasts until %s", x.at(r.position), e.ExpiresAt,
		key.id, time.UnixMicro(now.expires).UTC())
	x.reservationLives.expect(string(r.key) == "y/"+key.id, "the end at %s of %.60q has the key %.60q", x.at(r.position), key.id, r.key)
	x.end(r, key, now, state)
}

// commit ends a reservation by usage. All of the hold is held no longer, also the part that is not used.
func (x *pass) commit(r *row, s *content, g *admission) {
	key := reservationKey{r.tenant, g.ReservationID}
	now := x.open(r, key)
	if now == nil {
		return
	}
	x.sameHold(r, now, s.Feature, g.HeldAmount, g)
	amount, err := s.Amount.Int64()
	x.reservationLives.expect(err == nil && (amount <= now.amount || g.Overage == "record"),
		"%s commits %.20s of %d that %.60q holds, without an overage", x.at(r.position), s.Amount, now.amount, key.id)
	now.eventID, now.committed = s.EventID, amount
	x.end(r, key, now, "COMMITTED")
}

func (x *pass) end(r *row, key reservationKey, now *reservation, state string) {
	now.state, now.endedAt, now.ended = state, r.position, r.recorded+databaseEpoch
	if now.ended < x.accounts.since {
		delete(x.accounts.reservations, key)
	}
}
