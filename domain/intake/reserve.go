package intake

import (
	"strconv"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// Holding asks to hold an amount of a feature for a time.
type Holding struct {
	ReservationID, Feature string
	Amount                 int64
	Lasts                  time.Duration
}

// Sent returns the canonical form in which repetitions are compared. It does not cover the time: a repetition gets the reservation as
// it is.
func (c *Holding) Sent() []byte {
	dst := strconv.AppendInt(append(make([]byte, 0, 64+len(c.ReservationID)), `{"amount":`...), c.Amount, 10)
	dst = append(append(append(dst, `,"feature":"`...), c.Feature...), `","reservationId":`...)
	return append(strictjson.AppendString(dst, c.ReservationID), '}')
}

var holdMembers = []string{"feature", "reservationId", "amount", "ttlSeconds"}

// DecodeHold reads {"reservationId", "amount", "ttlSeconds"?} for a feature.
func DecodeHold(body []byte, feature string) (Holding, error) {
	return decodeRequest(body, feature, `the body must be an object: {"reservationId":…,"amount":…}`, holdMembers[1:], (*decoder).holding)
}

// DecodeHolds reads {"items": […]}: 1 to MaxTogether holdings, each with its feature and a reservationId of its own.
// Pointers start at the body.
func DecodeHolds(body []byte) ([]Holding, error) {
	return decodeRequests(body, `an item must be an object: {"feature":…,"reservationId":…,"amount":…}`, holdMembers, (*decoder).holding,
		func(c, other *Holding) *domain.Error {
			if c.ReservationID != other.ReservationID {
				return nil
			}
			return &domain.Error{Code: "reservation_id_invalid", Pointer: "/reservationId", Message: "reservationId is that"}
		})
}

func (d *decoder) holding(in *requestDraft) (Holding, *domain.Error) {
	for _, check := range []func() *domain.Error{in.checkUnknown, in.checkReservationID, in.checkFeature} {
		if fault := check(); fault != nil {
			return Holding{}, fault
		}
	}
	amount, fault := in.readAmount()
	if fault != nil {
		return Holding{}, fault
	}
	lasts, fault := in.readTTL()
	if lasts == 0 {
		lasts = DefaultTTLSeconds * time.Second
	}
	return Holding{string(in.reservationID.chars), string(in.feature.chars), amount, lasts}, fault
}

// DecodeExtend reads {"ttlSeconds"}: for how long from now an amount is held.
func DecodeExtend(body []byte) (time.Duration, error) {
	return decodeRequest(body, "", `the body must be an object: {"ttlSeconds":…}`, []string{"ttlSeconds"},
		func(_ *decoder, in *requestDraft) (time.Duration, *domain.Error) {
			if fault := in.checkUnknown(); fault != nil {
				return 0, fault
			}
			lasts, fault := in.readTTL()
			if fault == nil && lasts == 0 {
				fault = in.missing("ttlSeconds")
			}
			return lasts, fault
		})
}

// Commitment asks to use at most the amount that a reservation holds, and to record it.
type Commitment struct {
	ReservationID, Feature, EventID string
	Amount                          int64
	Overage                         bool // the amount may be above the held one
}

// Sent returns the canonical form in which repetitions are compared.
func (c *Commitment) Sent() []byte {
	dst := strconv.AppendInt(append(make([]byte, 0, 128+len(c.EventID)+len(c.ReservationID)), `{"amount":`...), c.Amount, 10)
	dst = append(dst, `,"by":"`+events.ByCommit+`","eventId":`...)
	dst = strictjson.AppendString(dst, c.EventID)
	dst = append(append(append(dst, `,"feature":"`...), c.Feature...), '"')
	if c.Overage {
		dst = append(dst, `,"overage":"`+events.OverageRecord+`"`...)
	}
	return append(strictjson.AppendString(append(dst, `,"reservationId":`...), c.ReservationID), '}')
}

// DecodeCommit reads {"eventId", "amount", "overage"?} for a reservation of a feature.
func DecodeCommit(body []byte, feature, reservation string) (Commitment, error) {
	return decodeRequest(body, feature, `the body must be an object: {"eventId":…,"amount":…}`, []string{"eventId", "amount", "overage"},
		func(d *decoder, in *requestDraft) (Commitment, *domain.Error) {
			for _, check := range []func() *domain.Error{in.checkUnknown, in.checkEventID, in.checkFeature} {
				if fault := check(); fault != nil {
					return Commitment{}, fault
				}
			}
			amount, fault := in.readAmount()
			if fault != nil {
				return Commitment{}, fault
			}
			overage := string(in.overage.chars)
			if in.overage.sent && (!in.overage.valid || overage != events.OverageRecord && overage != "deny") {
				return Commitment{}, in.refuse("overage", "overage_invalid", `must be "deny", the default, or "record"`)
			}
			return Commitment{reservation, feature, string(in.eventID.chars), amount, overage == events.OverageRecord}, nil
		})
}

// Bounds of the time for which an amount is held, in seconds.
const (
	MaxTTLSeconds     = 86400
	DefaultTTLSeconds = 60
)

// readTTL returns the time for which an amount is held; 0 if absent.
func (in *requestDraft) readTTL() (time.Duration, *domain.Error) {
	if in.ttlSeconds == nil {
		return 0, nil
	}
	n := domain.ReadDigits(in.ttlSeconds)
	if len(in.ttlSeconds) > len("86400") || n < 1 || n > MaxTTLSeconds {
		return 0, in.refuse("ttlSeconds", "ttl_seconds_invalid", "must be an integer from 1 to 86400, written in digits only")
	}
	return time.Duration(n) * time.Second, nil
}
