package intake

import (
	"slices"
	"strconv"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
)

// MaxTogether bounds the items of one request that are granted together.
const MaxTogether = 20

// CanonicalRequest is the version of the canonical form of quota requests: it covers the sent body and the route, and no time.
const CanonicalRequest = 2

// requestDraft is a request against a limit as sent: only the rules of JSON are checked.
type requestDraft struct {
	draft
	reservationID, overage text
	ttlSeconds             []byte // raw JSON, nil if absent
}

// decodeRequest reads a body that is one quota request about a feature, of which it may have the members named.
func decodeRequest[T any](body []byte, feature, form string, members []string, settle func(*decoder, *requestDraft) (T, *domain.Error)) (T,
	error) {
	var none T
	d, fault := newDecoder(body)
	if fault != nil {
		return none, fault
	}
	in := d.readRequest(form, members)
	if d.in.Fault == nil {
		d.in.End()
	}
	if d.in.Fault != nil {
		return none, refused(d.in.Fault)
	}
	in.feature = text{sent: true, valid: true, chars: []byte(feature)}
	whole, fault := settle(d, &in)
	return whole, asError(fault)
}

// decodeRequests reads {"items": […]}: 1 to MaxTogether quota requests, no two of which have the same id. clash returns the fault of two
// that have, whose message it begins.
func decodeRequests[T any](body []byte, form string, members []string, settle func(*decoder, *requestDraft) (T, *domain.Error),
	clash func(it, other *T) *domain.Error) ([]T, error) {
	d, fault := newDecoder(body)
	if fault != nil {
		return nil, fault
	}
	var list []T
	var first *domain.Error
	n, fault := d.readItems(func(i int) {
		start := d.in.Pos()
		in := d.readRequest(form, members)
		if d.in.Fault != nil || first != nil || i >= MaxTogether {
			return
		}
		item, fault := settle(d, &in)
		if fault == nil && d.in.CrowdedSince(start) {
			fault = &domain.Error{Code: "items_invalid", Message: "the item has " + strictjson.TooManyMembers}
		}
		for k := range list {
			if fault != nil {
				break
			}
			if fault = clash(&item, &list[k]); fault != nil {
				fault.Message += " of the item " + strconv.Itoa(k) + ", too; each item needs its own"
			}
		}
		if fault != nil {
			fault.Pointer = "/items/" + strconv.Itoa(i) + fault.Pointer
			first = fault
			return
		}
		list = append(list, item)
	})
	switch {
	case fault != nil:
		return nil, fault
	case n == 0 || n > MaxTogether:
		return nil, &domain.Error{Code: "items_invalid", Pointer: "/items", Message: "items must have 1 to " + strconv.Itoa(MaxTogether) +
			" items; it has " + strconv.Itoa(n)}
	case first != nil:
		return nil, first
	}
	return list, nil
}

// readItems reads {"items":[…]}, each element with read, and returns the number of elements.
func (d *decoder) readItems(read func(i int)) (n int, fault *domain.Error) {
	fault = d.readList("items", &domain.Error{Code: "items_invalid", Pointer: "/items", Message: "items must be an array"}, func() {
		if _, ok := d.in.Enter(); !ok {
			return
		}
		for ; d.in.Element(n); n++ {
			if read(n); d.in.Fault != nil {
				break
			}
		}
	})
	return n, fault
}

// readRequest reads the members of a quota request.
func (d *decoder) readRequest(form string, members []string) (in requestDraft) {
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
		raw := d.in.Since(start)
		switch known := slices.Contains(members, string(name)); {
		case !known && !in.unknown.sent:
			in.unknown = text{sent: true, chars: name}
		case !known:
		case string(name) == "reservationId":
			in.reservationID = textOf(raw)
		case string(name) == "overage":
			in.overage = textOf(raw)
		case string(name) == "ttlSeconds":
			in.ttlSeconds = raw
		default:
			d.assign(&in.draft, name, raw)
		}
	}
	return in
}

func (in *requestDraft) checkUnknown() *domain.Error {
	if !in.unknown.sent {
		return nil
	}
	return &domain.Error{Code: "unknown_member", Pointer: pointerTo(in.unknown.chars),
		Message: "the member " + strictjson.Quote(in.unknown.chars) + " is not known here; names are case-sensitive"}
}

func (in *requestDraft) checkReservationID() *domain.Error {
	id := in.reservationID
	switch {
	case !id.sent:
		return in.missing("reservationId")
	case !id.valid || !IsReservationID(id.chars):
		return in.refuse("reservationId", "reservation_id_invalid",
			"must be a string of 1 to 255 printable ASCII characters without space ('!' to '~')")
	}
	return nil
}

// IsReservationID reports whether an id has the form of ids of reservations, which is that of eventIds.
func IsReservationID(id []byte) bool {
	return len(id) > 0 && len(id) <= MaxEventID && isPrintable(id)
}
