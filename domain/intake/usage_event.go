package intake

import (
	"bytes"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// Limits of one usage event. They are part of the API.
const (
	// MaxEventID bounds an eventId, in characters.
	MaxEventID = 255
	// MaxMetadata bounds metadata in canonical form, in bytes.
	MaxMetadata = 4096
	// MaxMetadataLevels bounds the nesting of objects and arrays in metadata; the
	// metadata object is level 1.
	MaxMetadataLevels = 5
)

// draft is an event as sent: only the rules of JSON are checked.
type draft struct {
	form        form
	featureName string // in a CloudEvent, the attribute that holds the feature

	unknown                                text   // the first unknown member
	eventID, feature, timestamp, kind, ref text   // kind is type, ref is correctionRef
	from                                   text   // source of a plain event
	amount, metadata                       []byte // raw JSON, nil if absent
	source, traceParent                    string
}

// text is a member that must be a string.
type text struct {
	sent  bool   // the member is present
	valid bool   // it is a string, without lone surrogates
	chars []byte // unescaped
}

func textOf(raw []byte) text {
	if raw[0] != '"' {
		return text{sent: true}
	}
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') >= 0 {
		chars, lone := strictjson.Unescape(raw)
		return text{sent: true, valid: !lone, chars: chars}
	}
	return text{sent: true, valid: true, chars: raw}
}

// form is the format of an event. It determines the names and pointers of members in
// errors.
type form uint8

const (
	formPlain      form = iota // an element of events
	formStructured             // a CloudEvent in JSON
	formBinary                 // a CloudEvent in headers of HTTP, with data as the body
	formRecord                 // a CloudEvent in headers of a Kafka record, with data as the value
)

// locate returns the name of a member in the event's format, and its pointer.
func (in *draft) locate(member string) (name, pointer string) {
	if in.form == formPlain {
		return member, "/" + member
	}
	switch member {
	case "amount", "metadata", "correctionRef":
		return "data." + member, in.parent() + "/" + member
	case typeInData:
		return member, in.parent() + "/type"
	case "eventId":
		name = "id"
	case "feature":
		name = in.featureName
	case "timestamp":
		name = "time"
	default:
		name = member
	}
	switch { // a header is not in the body
	case in.form == formStructured:
		return name, "/" + name
	case member == "datacontenttype":
		return "Content-Type", ""
	case in.form == formRecord:
		return "ce_" + name, ""
	}
	return "ce-" + name, ""
}

// typeInData names the type of the usage in a CloudEvent, whose attribute type is another.
const typeInData = "data.type"

// parent returns the pointer of the object that contains amount and metadata.
func (in *draft) parent() string {
	if in.form == formStructured {
		return "/data"
	}
	return ""
}

func (in *draft) refuse(member, code, message string) *domain.Error {
	name, pointer := in.locate(member)
	return &domain.Error{Code: code, Message: name + " " + message, Pointer: pointer}
}

func (in *draft) missing(member string) *domain.Error {
	return in.refuse(member, "member_missing", "is missing; it is required")
}

// settle applies the rules to a draft: item gets the event or the first fault, in
// this order: unknown members, type, eventId, feature, amount, timestamp,
// source, metadata, correctionRef; and for each "missing" before "invalid". The order is part
// of the API: the fault that describes the mistake best comes first (a misspelt
// member before the one that is missing because of it).
func (d *decoder) settle(item *BatchItem, in *draft) {
	idFault := in.checkEventID()
	if idFault == nil {
		item.EventID = d.copyID(in.eventID.chars)
	}
	switch {
	case in.unknown.sent:
		item.Err = &domain.Error{Code: "unknown_member", Pointer: in.parent() + pointerTo(in.unknown.chars),
			Message: "the member " + strictjson.Quote(in.unknown.chars) + " is not known here; names are case-sensitive"}
	case in.checkType() != nil:
		item.Err = in.checkType()
	case idFault != nil:
		item.Err = idFault
	default:
		item.Event, item.Err = d.event(in, item.EventID)
	}
	if item.Err != nil {
		item.describe(in)
	}
}

// describe keeps the feature of an element that is refused.
func (item *BatchItem) describe(in *draft) {
	if in.checkFeature() == nil {
		item.Sent = &SentItem{Feature: string(in.feature.chars)}
	}
}

func (d *decoder) event(in *draft, eventID string) (*domain.UsageEvent, *domain.Error) {
	if fault := in.checkFeature(); fault != nil {
		return nil, fault
	}
	amount, fault := in.readAmount()
	if fault != nil {
		return nil, fault
	}
	timestamp, fault := in.readTimestamp()
	if fault != nil {
		return nil, fault
	}
	if fault := in.readSource(); fault != nil {
		return nil, fault
	}
	event := d.newEvent()
	*event = domain.UsageEvent{
		EventID: eventID, Feature: d.intern(in.feature.chars), Amount: amount, Type: in.eventType(), Timestamp: timestamp,
		Source: in.source, TraceParent: in.traceParent,
	}
	// Calls by name: through a variable they would move each draft to the heap.
	if event.Type == events.TypeUsage {
		fault = d.seal(event, in)
	} else {
		fault = d.sealCorrection(event, in)
	}
	if fault != nil {
		return nil, fault
	}
	if fault := in.checkRef(eventID); fault != nil {
		return nil, fault
	}
	event.CorrectionRef = string(in.ref.chars)
	return event, nil
}

func (in *draft) checkType() *domain.Error {
	if !in.kind.sent || in.kind.valid && string(in.kind.chars) == in.eventType() {
		return nil
	}
	member := "type"
	if in.form != formPlain {
		member = typeInData
	}
	return in.refuse(member, "type_invalid", `must be "usage", "correction" or "retraction", or be left out, which means "usage"`)
}

func (in *draft) checkEventID() *domain.Error {
	id := in.eventID
	switch {
	case !id.sent:
		return in.missing("eventId")
	case !id.valid || len(id.chars) < 1 || len(id.chars) > MaxEventID || !isPrintable(id.chars):
		return in.refuse("eventId", "event_id_invalid",
			"must be a string of 1 to 255 printable ASCII characters without space ('!' to '~')")
	}
	return nil
}

func isPrintable(chars []byte) bool {
	for _, c := range chars {
		if c < '!' || c > '~' {
			return false
		}
	}
	return true
}

func (in *draft) checkFeature() *domain.Error {
	switch {
	case !in.feature.sent:
		return in.missing("feature")
	case !in.feature.valid || !domain.IsLookupKey(in.feature.chars):
		return in.refuse("feature", "feature_invalid", "must be a string that matches "+domain.LookupKeyForm)
	}
	return nil
}

// readAmount accepts only digits. A fraction or an exponent, even with an integer
// value, shows that the producer computes in floating point. A correction may lower the amount to 0; a retraction has none.
func (in *draft) readAmount() (int64, *domain.Error) {
	kind, least := in.eventType(), 1
	switch {
	case kind == events.TypeRetraction && in.amount != nil:
		return 0, in.refuse("amount", "amount_invalid",
			"is not for retractions, which take back the whole amount; leave it out, or send a correction")
	case kind == events.TypeRetraction:
		return 0, nil
	case in.amount == nil:
		return 0, in.missing("amount")
	case kind == events.TypeCorrection:
		least = 0
	}
	n := domain.ReadDigits(in.amount)
	if len(in.amount) > len("9007199254740991") || n < least || n > domain.MaxAmount {
		return 0, in.refuse("amount", "amount_invalid", "must be an integer from "+strconv.Itoa(least)+
			" to 9007199254740991, written in digits only")
	}
	return int64(n), nil
}

func (in *draft) readTimestamp() (time.Time, *domain.Error) {
	if !in.timestamp.sent {
		return time.Time{}, in.missing("timestamp")
	}
	if !in.timestamp.valid {
		return time.Time{}, in.refuse("timestamp", "timestamp_invalid", "must be a string, an RFC 3339 time such as 2026-05-01T12:00:00Z")
	}
	t, fault := domain.ParseTime(in.timestamp.chars)
	if fault != nil {
		_, fault.Pointer = in.locate("timestamp")
		return time.Time{}, fault
	}
	return t, nil
}

// readSource reads the source of a plain event: as that of a CloudEvent, but optional.
func (in *draft) readSource() *domain.Error {
	if !in.from.sent {
		return nil
	}
	if !isSource(in.from) {
		return in.refuse("source", "source_invalid", "must be a URI reference of 1 to 1024 printable ASCII characters without space")
	}
	in.source = string(in.from.chars)
	return nil
}

func isSource(t text) bool {
	return t.valid && len(t.chars) >= 1 && len(t.chars) <= maxSource && isPrintable(t.chars)
}

// seal writes Body, with the members in the order of RFC 8785. An eventId that JSON
// escapes differs from the text in the dedupe key, so Body is then the complete
// payload.
func (d *decoder) seal(event *domain.UsageEvent, in *draft) *domain.Error {
	out := d.room(min(len(in.metadata), MaxMetadata) + len(in.source))
	start := len(out)
	out = strconv.AppendInt(append(out, '['), event.Amount, 10)
	out = append(append(append(out, `,"`...), event.Feature...), '"')
	behind := len(out)
	out, fault := d.appendMetadata(out, in)
	if fault != nil {
		return fault
	}
	if event.Source != "" {
		if len(out) == behind {
			out = append(out, ",null"...)
		}
		out = strictjson.AppendString(append(out, ','), event.Source)
	}
	out = append(out, ']')
	d.arena = out
	event.Body = out[start:len(out):len(out)]
	if bytes.IndexByte(in.eventID.chars, '"') >= 0 || bytes.IndexByte(in.eventID.chars, '\\') >= 0 {
		quoted := strictjson.AppendString(nil, in.eventID.chars)
		event.Body = codec.UsagePayload(event.Body, quoted[1:len(quoted)-1], event.Timestamp)
	}
	return nil
}

// appendMetadata appends a comma and metadata, if there is any.
func (d *decoder) appendMetadata(out []byte, in *draft) ([]byte, *domain.Error) {
	if in.metadata == nil || in.metadata[0] == 'n' {
		return out, nil
	}
	if in.metadata[0] != '{' {
		return nil, in.refuse("metadata", "metadata_invalid", "must be an object")
	}
	before := len(out)
	out, why := d.canonical.Append(append(out, ','), in.metadata, MaxMetadataLevels, MaxMetadata)
	switch {
	case why == strictjson.TooLong:
		return nil, in.refuse("metadata", "metadata_too_large", "has more than 4096 bytes in canonical form; send less")
	case why != "":
		return nil, in.refuse("metadata", "metadata_invalid", "cannot be kept exactly: "+why)
	case len(out)-before-1 == len("{}"):
		return out[:before], nil
	}
	return out, nil
}
