package domain

import (
	"strconv"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// MaxTogether bounds the items of one request that are granted together.
const MaxTogether = 20

// CanonicalAsk is the version of the canonical form of asks: it covers what was sent and the route, and no time.
const CanonicalAsk = 2

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
	dst = strictjson.AppendString(dst, []byte(c.EventID))
	dst = append(append(append(dst, `,"feature":"`...), c.Feature...), '"')
	if c.Metadata != nil {
		dst = append(append(dst, `,"metadata":`...), c.Metadata...)
	}
	return append(dst, '}')
}

// DecodeConsume reads {"eventId", "amount", "metadata"?} for a feature. Its errors are those of an event of usage.
func DecodeConsume(body []byte, feature string) (Consumption, error) {
	d, fault := newDecoder(body)
	if fault != nil {
		return Consumption{}, fault
	}
	in := d.readAsk(`the body must be an object: {"eventId":…,"amount":…}`, false)
	if d.in.Fault == nil {
		d.in.End()
	}
	if d.in.Fault != nil {
		return Consumption{}, refused(d.in.Fault)
	}
	in.feature = text{sent: true, valid: true, chars: []byte(feature)}
	c, fault := d.consumption(&in)
	return c, asError(fault)
}

// DecodeConsumes reads {"items": […]}: 1 to MaxTogether consumptions, each with its feature and an eventId of its own.
// Pointers start at the body.
func DecodeConsumes(body []byte) ([]Consumption, error) {
	d, fault := newDecoder(body)
	if fault != nil {
		return nil, fault
	}
	var list []Consumption
	var first *Error
	n, fault := d.readItems(func(i int) {
		in := d.readAsk(`an item must be an object: {"feature":…,"eventId":…,"amount":…}`, true)
		if d.in.Fault != nil || first != nil || i >= MaxTogether {
			return
		}
		c, fault := d.consumption(&in)
		for k := range list {
			if fault == nil && list[k].EventID == c.EventID {
				fault = &Error{Code: "event_id_invalid", Pointer: "/eventId", Message: "eventId is that of the item " + strconv.Itoa(k) + ", too; each item needs its own"}
			}
		}
		if fault != nil {
			fault.Pointer = "/items/" + strconv.Itoa(i) + fault.Pointer
			first = fault
			return
		}
		list = append(list, c)
	})
	switch {
	case fault != nil:
		return nil, fault
	case n == 0 || n > MaxTogether:
		return nil, &Error{Code: "items_invalid", Pointer: "/items", Message: "items must have 1 to " + strconv.Itoa(MaxTogether) + " items; it has " + strconv.Itoa(n)}
	case first != nil:
		return nil, first
	}
	return list, nil
}

// readItems reads the only member of the body, an array, each element with read, and returns the number of elements.
func (d *decoder) readItems(read func(i int)) (n int, fault *Error) {
	in := &d.in
	if in.Peek() != '{' {
		in.Fail(`the body must be an object: {"items":[…]}`)
		return 0, refused(in.Fault)
	}
	found, unknown := missing, text{}
	base, _ := in.Enter()
	for {
		name, more := in.Member(base)
		if !more {
			break
		}
		switch {
		case string(name) == "items" && in.Peek() == '[':
			found = isArray
			if _, ok := in.Enter(); ok {
				for n = 0; in.Element(n); n++ {
					if read(n); in.Fault != nil {
						break
					}
				}
			}
			continue
		case string(name) == "items":
			found = notArray
		case !unknown.sent:
			unknown = text{sent: true, chars: name}
		}
		in.Value()
	}
	if in.Fault == nil {
		in.End()
	}
	switch {
	case in.Fault != nil:
		return n, refused(in.Fault)
	case unknown.sent:
		return n, &Error{Code: "unknown_member", Pointer: pointerTo(unknown.chars),
			Message: "the member " + strictjson.Quote(unknown.chars) + ` is not known here; the body has only "items"`}
	case found == missing:
		return n, &Error{Code: "member_missing", Pointer: "/items", Message: "items is missing; it is required"}
	case found == notArray:
		return n, &Error{Code: "items_invalid", Pointer: "/items", Message: "items must be an array"}
	}
	return n, nil
}

// readAsk reads the members of a consumption; with a feature if that is not in the path.
func (d *decoder) readAsk(form string, feature bool) (in draft) {
	if d.in.Peek() != '{' {
		d.in.Fail(form)
		return in
	}
	base, ok := d.in.Enter()
	for ok {
		name, more := d.in.Member(base)
		if !more {
			break
		}
		start := d.in.Pos()
		if ok = d.in.Value(); !ok {
			break
		}
		switch {
		case string(name) == "eventId", string(name) == "amount", string(name) == "metadata", feature && string(name) == "feature":
			d.assign(&in, name, d.in.Since(start))
		case !in.unknown.sent:
			in.unknown = text{sent: true, chars: name}
		}
	}
	return in
}

func (d *decoder) consumption(in *draft) (Consumption, *Error) {
	if in.unknown.sent {
		return Consumption{}, &Error{Code: "unknown_member", Pointer: pointerTo(in.unknown.chars),
			Message: "the member " + strictjson.Quote(in.unknown.chars) + " is not known here; names are case-sensitive"}
	}
	for _, check := range []func() *Error{in.checkEventID, in.checkFeature} {
		if fault := check(); fault != nil {
			return Consumption{}, fault
		}
	}
	amount, fault := in.readAmount()
	if fault != nil {
		return Consumption{}, fault
	}
	c := Consumption{EventID: string(in.eventID.chars), Feature: string(in.feature.chars), Amount: amount}
	metadata, fault := d.appendMetadata(nil, in)
	if len(metadata) > 1 {
		c.Metadata = metadata[1:] // behind the comma
	}
	return c, fault
}
