package intake

import (
	"strconv"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// Consumption asks to use an amount of a feature, and to record it.
type Consumption struct {
	EventID, Feature string
	Amount           int64
	Metadata         []byte // canonical, nil without any
}

// Sent returns the canonical form in which repetitions are compared.
func (c *Consumption) Sent() []byte {
	dst := strconv.AppendInt(append(make([]byte, 0, 96+len(c.EventID)+len(c.Metadata)), `{"amount":`...), c.Amount, 10)
	dst = append(dst, `,"by":"`+events.ByConsume+`","eventId":`...)
	dst = strictjson.AppendString(dst, c.EventID)
	dst = append(append(append(dst, `,"feature":"`...), c.Feature...), '"')
	if c.Metadata != nil {
		dst = append(append(dst, `,"metadata":`...), c.Metadata...)
	}
	return append(dst, '}')
}

// DecodeConsume reads {"eventId", "amount", "metadata"?} for a feature. Its errors are those of an event of usage.
func DecodeConsume(body []byte, feature string) (Consumption, error) {
	return decodeRequest(body, feature, `the body must be an object: {"eventId":…,"amount":…}`, consumeMembers[1:], (*decoder).consumption)
}

// DecodeConsumes reads {"items": […]}: 1 to MaxTogether consumptions, each with its feature and an eventId of its own.
// Pointers start at the body.
func DecodeConsumes(body []byte) ([]Consumption, error) {
	return decodeRequests(body, `an item must be an object: {"feature":…,"eventId":…,"amount":…}`, consumeMembers, (*decoder).consumption,
		func(c, other *Consumption) *domain.Error {
			if c.EventID != other.EventID {
				return nil
			}
			return &domain.Error{Code: "event_id_invalid", Pointer: "/eventId", Message: "eventId is that"}
		})
}

var consumeMembers = []string{"feature", "eventId", "amount", "metadata"}

func (d *decoder) consumption(in *requestDraft) (Consumption, *domain.Error) {
	for _, check := range []func() *domain.Error{in.checkUnknown, in.checkEventID, in.checkFeature} {
		if fault := check(); fault != nil {
			return Consumption{}, fault
		}
	}
	amount, fault := in.readAmount()
	if fault != nil {
		return Consumption{}, fault
	}
	c := Consumption{EventID: string(in.eventID.chars), Feature: string(in.feature.chars), Amount: amount}
	metadata, fault := d.appendMetadata(nil, &in.draft)
	if len(metadata) > 1 {
		c.Metadata = metadata[1:] // behind the comma
	}
	return c, fault
}
