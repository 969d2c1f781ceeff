// Package intake decodes callers' input: usage as JSON or as CloudEvents, consumption and reservations. The result has a valid shape;
// rules that depend on a tenant's state are checked elsewhere. Like domain, it is pure.
package intake

import (
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// MaxBatch bounds the events of one request: enough to make a batch cheap, few
// enough for one transaction.
const MaxBatch = 1000

var upToMaxBatch = "1 to " + strconv.Itoa(MaxBatch)

// BatchItem is one element of a batch: exactly one of Event and Err is set.
type BatchItem struct {
	Index   int
	EventID string // "" if the element has no valid one
	Event   *domain.UsageEvent
	Err     *domain.Error
	Sent    *SentItem // of an element with Err
}

// SentItem describes an element that is refused by its shape.
type SentItem struct {
	Feature string // "" if the element has no valid one
	Payload string // its first bytes
}

// refusedAs keeps the first bytes of an element that is refused.
func (item *BatchItem) refusedAs(sent []byte) {
	if item.Sent == nil {
		item.Sent = new(SentItem)
	}
	item.Sent.Payload = FirstBytes(sent)
}

// FirstBytes returns the first bytes of a payload as text, at most events.MaxSeenPayload.
func FirstBytes(payload []byte) string {
	return strings.ToValidUTF8(string(payload[:min(len(payload), events.MaxSeenPayload)]), "")
}

// DecodeBatch reads {"events":[…]}. It returns an *Error and no items if it cannot
// find the elements: malformed_json (see strictjson.Check; but lone surrogates inside an
// element are that element's fault), unknown_member, member_missing, events_invalid,
// batch_empty or batch_too_large; of several faults, the first in this order. Other
// faults are in the BatchItem of their element. Pointers start at the body. The
// result shares no memory with body.
func DecodeBatch(body []byte) ([]BatchItem, error) {
	d, fault := newDecoder(body)
	if fault != nil {
		return nil, fault
	}
	count := 0
	fault = d.readList("events", &domain.Error{Code: "events_invalid", Pointer: "/events",
		Message: "events must be an array of " + upToMaxBatch + " events"},
		func() { count = d.readElements("/events/", (*decoder).readUsage) })
	if fault == nil {
		fault = countFault(count, "/events")
	}
	if fault != nil {
		return nil, fault
	}
	return d.items, nil
}

// DecodePayload reads the stored form of a UsageEvent's Payload.
func DecodePayload(payload []byte) (*domain.UsageEvent, error) {
	d, fault := newDecoder(payload)
	if fault != nil {
		return nil, fault
	}
	var item BatchItem
	d.readUsage(&item)
	if d.in.Fault == nil {
		d.in.End()
	}
	if d.in.Fault != nil {
		return nil, refused(d.in.Fault)
	}
	return item.Event, asError(item.Err)
}

// decoder reads one body. It allocates its results in few pieces of memory, because
// a batch is stored and released as a whole.
type decoder struct {
	in        strictjson.Scanner
	foreign   *domain.Error // the object read last is no CloudEvent
	items     []BatchItem
	free      []domain.UsageEvent
	arena     []byte
	canonical strictjson.Canonicalizer
	feature   string
	ids       strings.Builder // eventIds are substrings of it
}

// guessedEvent is the approximate size of an event in a batch; a wrong guess costs
// memory or a copy.
const guessedEvent = 128

// guessedBody and guessedID are the approximate sizes of its Body and its eventId.
const (
	guessedBody = 64
	guessedID   = 24
)

func newDecoder(body []byte) (*decoder, *domain.Error) {
	in, fault := strictjson.Open(body)
	if fault != nil {
		return nil, refused(fault)
	}
	return &decoder{in: in}, nil
}

// guess estimates the number of events in the rest of the body.
func (d *decoder) guess() int {
	return min(1+d.in.Left()/guessedEvent, MaxBatch)
}

func (d *decoder) newEvent() *domain.UsageEvent {
	if len(d.free) == 0 {
		d.free = make([]domain.UsageEvent, d.guess())
	}
	event := &d.free[0]
	d.free = d.free[1:]
	return event
}

// room returns the arena with space for one Body whose variable parts have n bytes.
func (d *decoder) room(n int) []byte {
	const fixed = 128 // the brackets, amount and feature
	if need := fixed + n; cap(d.arena)-len(d.arena) < need {
		d.arena = make([]byte, 0, need+d.guess()*guessedBody)
	}
	return d.arena
}

// copyID returns a copy of an id as a string.
func (d *decoder) copyID(id []byte) string {
	if d.ids.Cap()-d.ids.Len() < len(id) {
		d.ids = strings.Builder{}
		d.ids.Grow(len(id) + d.guess()*guessedID)
	}
	start := d.ids.Len()
	d.ids.Write(id)
	return d.ids.String()[start:]
}

// intern avoids an allocation if the feature is the same as the previous one.
func (d *decoder) intern(feature []byte) string {
	if d.feature != string(feature) {
		d.feature = string(feature)
	}
	return d.feature
}

func countFault(count int, pointer string) *domain.Error {
	switch {
	case count == 0:
		return &domain.Error{Code: "batch_empty", Pointer: pointer, Message: "the batch has no events; send " + upToMaxBatch}
	case count > MaxBatch:
		return &domain.Error{Code: "batch_too_large", Pointer: pointer,
			Message: "the batch has " + strconv.Itoa(count) + " events; send " + upToMaxBatch + " at a time"}
	}
	return nil
}

// readElements reads an array, each element with read, and returns their number. It
// only skips elements after MaxBatch: the batch will be refused, but malformed JSON
// is reported first.
func (d *decoder) readElements(pointer string, read func(*decoder, *BatchItem)) int {
	if _, ok := d.in.Enter(); !ok {
		return 0
	}
	d.items = make([]BatchItem, 0, d.guess())
	n := 0
	for ; d.in.Element(n); n++ {
		if n >= MaxBatch {
			if !d.in.Value() {
				break
			}
			continue
		}
		d.items = append(d.items, BatchItem{Index: n})
		item := &d.items[n]
		start := d.in.Pos()
		if read(d, item); d.in.Fault != nil {
			break
		}
		d.refuseCrowded(item, start)
		if item.Err != nil {
			item.refusedAs(d.in.Since(start))
			item.Err.Pointer = pointer + strconv.Itoa(n) + item.Err.Pointer
		}
	}
	return n
}

// refuseCrowded refuses an element with so many members that the scanner has not compared their names.
func (d *decoder) refuseCrowded(item *BatchItem, start int) {
	if item.Err == nil && d.in.CrowdedSince(start) {
		item.Event, item.Err = nil, &domain.Error{Code: "event_invalid", Message: "the event has " + strictjson.TooManyMembers}
	}
}

// readUsage reads one element of events.
func (d *decoder) readUsage(item *BatchItem) {
	if d.in.Peek() != '{' {
		d.in.Value()
		item.Err = &domain.Error{Code: "event_invalid", Message: "an event must be an object"}
		return
	}
	var in draft
	base, ok := d.in.Enter()
	for ok {
		name, more := d.in.Member(base)
		if !more {
			break
		}
		start := d.in.Pos()
		if ok = d.in.Value(); ok {
			d.assign(&in, name, d.in.Since(start))
		}
	}
	if d.in.Fault == nil {
		d.settle(item, &in)
	}
}

// assign stores one member of a plain event.
func (d *decoder) assign(in *draft, name, raw []byte) {
	switch string(name) {
	case "eventId":
		in.eventID = textOf(raw)
	case "feature":
		in.feature = textOf(raw)
	case "amount":
		in.amount = raw
	case "timestamp":
		in.timestamp = textOf(raw)
	case "metadata":
		in.metadata = raw
	case "type":
		in.kind = textOf(raw)
	case "correctionRef":
		in.ref = textOf(raw)
	case "source":
		in.from = textOf(raw)
	default:
		if !in.unknown.sent {
			in.unknown = text{sent: true, chars: name}
		}
	}
}
