package intake

import (
	"mime"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// Media types of CloudEvents in structured mode.
const (
	MediaCloudEvent      = "application/cloudevents+json"
	MediaCloudEventBatch = "application/cloudevents-batch+json"
)

// maxSource bounds the source of an event, with which it is stored.
const maxSource = 1024

// DecodeCloudEvent reads one CloudEvent 1.0 in structured mode
// (application/cloudevents+json). The attributes id, source, type, time and
// specversion are required. id is the eventId; subject, or type if there is no
// subject, is the feature; time is the timestamp; data holds amount, and optional
// metadata, type and correctionRef. Names and values of all other attributes go to metadata.ce, as text, so
// that an event gives the same payload in each mode. Traces and partition keys
// describe the transport of an event and are not part of the payload.
//
// Faults are reported as by DecodeBatch. Faults of the envelope have the code
// cloudevent_invalid and precede those of the usage in it. A body without id, source, type or
// specversion is no CloudEvent: member_missing, and no items.
func DecodeCloudEvent(body []byte) ([]BatchItem, error) {
	d, fault := newDecoder(body)
	if fault != nil {
		return nil, fault
	}
	if d.in.Peek() != '{' {
		d.in.Fail("the body must be an object: one CloudEvent")
		return nil, refused(d.in.Fault)
	}
	return d.single((*decoder).readCloudEvent)
}

// DecodeCloudEventBatch reads an array of CloudEvents
// (application/cloudevents-batch+json), each as DecodeCloudEvent does.
func DecodeCloudEventBatch(body []byte) ([]BatchItem, error) {
	d, fault := newDecoder(body)
	if fault != nil {
		return nil, fault
	}
	if d.in.Peek() != '[' {
		d.in.Fail("the body must be an array of CloudEvents")
		return nil, refused(d.in.Fault)
	}
	count := d.readElements("/", (*decoder).readCloudEvent)
	if d.in.Fault != nil || !d.in.End() {
		return nil, refused(d.in.Fault)
	}
	if fault := countFault(count, ""); fault != nil {
		return nil, fault
	}
	return d.items, nil
}

// single reads a body with one event.
func (d *decoder) single(read func(*decoder, *BatchItem)) ([]BatchItem, error) {
	var item BatchItem
	start := d.in.Pos()
	read(d, &item)
	d.refuseCrowded(&item, start)
	if item.Err != nil {
		item.refusedAs(d.in.Since(start))
	}
	if d.in.Fault != nil || !d.in.End() {
		return nil, refused(d.in.Fault)
	}
	if d.foreign != nil {
		return nil, d.foreign
	}
	return []BatchItem{item}, nil
}

// envelope is a CloudEvent's attributes and data before they are checked.
type envelope struct {
	form                                   form
	specVersion, id, source, kind, subject text
	time, contentType, schema              text
	traceParent, traceState, partitionKey  text
	extensions                             []attribute
	extended                               int    // bytes of extensions
	data                                   []byte // raw JSON, nil if absent
	base64                                 bool
	fault                                  *domain.Error // of an attribute
}

type attribute struct {
	name  string
	value []byte
}

// readCloudEvent reads one CloudEvent in JSON.
func (d *decoder) readCloudEvent(item *BatchItem) {
	if d.in.Peek() != '{' {
		d.in.Value()
		item.Err = &domain.Error{Code: "event_invalid", Message: "an event must be an object: one CloudEvent"}
		return
	}
	e := envelope{form: formStructured}
	base, ok := d.in.Enter()
	for ok {
		name, more := d.in.Member(base)
		if !more {
			break
		}
		start := d.in.Pos()
		if ok = d.in.Value(); ok {
			e.assign(name, d.in.Since(start))
		}
	}
	if d.in.Fault == nil {
		d.settleCloudEvent(item, &e)
	}
}

// assign stores one member of a structured CloudEvent. Null is the same as absent
// (CloudEvents JSON format, section 2.2).
func (e *envelope) assign(name, raw []byte) {
	if raw[0] == 'n' {
		return
	}
	switch string(name) {
	case "data":
		e.data = raw
	case "data_base64":
		e.base64 = true
	default:
		if known := e.known(string(name)); known != nil {
			*known = textOf(raw)
			return
		}
		e.extend(name, attributeText(raw))
	}
}

// attributeText returns the value of an extension attribute in the string form of
// the CloudEvents type system.
func attributeText(raw []byte) text {
	switch raw[0] {
	case '"':
		return textOf(raw)
	case 't', 'f':
		return text{sent: true, valid: true, chars: raw}
	}
	if len(raw) > len("-2147483648") {
		return text{sent: true}
	}
	n, err := strconv.ParseInt(string(raw), 10, 32)
	return text{sent: true, valid: err == nil && strconv.FormatInt(n, 10) == string(raw), chars: raw}
}

func (e *envelope) extend(name []byte, value text) {
	switch {
	case !isAttributeName(name):
		e.refuse(string(name), "is no name for an attribute; names are lower-case letters and digits")
	case !value.valid || !isAttributeValue(value.chars):
		e.refuse(string(name), "must be a string without control characters, a boolean or an integer of 32 bits")
	case e.extended <= MaxMetadata: // else they are too large already
		e.extensions = append(e.extensions, attribute{string(name), value.chars})
		e.extended += len(name) + len(value.chars) + len(`"":"",`)
	}
}

// known returns the field for a defined attribute, nil for an extension.
func (e *envelope) known(name string) *text {
	switch name {
	case "specversion":
		return &e.specVersion
	case "id":
		return &e.id
	case "source":
		return &e.source
	case "type":
		return &e.kind
	case "subject":
		return &e.subject
	case "time":
		return &e.time
	case "datacontenttype":
		return &e.contentType
	case "dataschema":
		return &e.schema
	case "traceparent":
		return &e.traceParent
	case "tracestate":
		return &e.traceState
	case "partitionkey":
		return &e.partitionKey
	}
	return nil
}

func isAttributeName(name []byte) bool {
	for _, c := range name {
		if c-'a' > 'z'-'a' && c-'0' > 9 {
			return false
		}
	}
	return len(name) > 0
}

// isAttributeValue checks a value by CloudEvents 1.0, section 3.1 (String).
func isAttributeValue(value []byte) bool {
	for _, r := range string(value) {
		control := r < ' ' || r >= 0x7F && r <= 0x9F
		noncharacter := r >= 0xFDD0 && r <= 0xFDEF || r&0xFFFE == 0xFFFE
		if control || noncharacter {
			return false
		}
	}
	return true
}

// refuse keeps the first fault of an attribute.
func (e *envelope) refuse(name, why string) {
	if e.fault != nil {
		return
	}
	e.fault = &domain.Error{Code: "cloudevent_invalid", Message: "the attribute " + strictjson.Quote([]byte(name)) + " " + why}
	if e.form == formStructured {
		e.fault.Pointer = pointerTo([]byte(name))
	}
}

// settleCloudEvent checks the envelope, then the usage in it. The order is: the presence of the
// required attributes, names and values of extension attributes, data_base64, specversion, source,
// type, the other attributes, data, and then the order of settle.
func (d *decoder) settleCloudEvent(item *BatchItem, e *envelope) {
	in := e.draft()
	if in.checkEventID() == nil {
		item.EventID = string(in.eventID.chars)
	}
	if d.foreign = e.checkRequired(&in); d.foreign != nil {
		item.Err = d.foreign
		return
	}
	if item.Err = e.check(&in); item.Err == nil {
		item.Err = e.open(&in)
	}
	if item.Err == nil {
		d.settle(item, &in)
	} else {
		item.describe(&in)
	}
}

func (e *envelope) draft() draft {
	in := draft{form: e.form, eventID: e.id, timestamp: e.time, feature: e.subject, featureName: "subject"}
	if !e.subject.sent {
		in.feature, in.featureName = e.kind, "type"
	}
	in.source = string(e.source.chars)
	if _, _, ok := events.ParseTraceParent(string(e.traceParent.chars)); ok {
		in.traceParent = string(e.traceParent.chars)
	}
	return in
}

// checkRequired checks the attributes without which an object is no CloudEvent.
func (e *envelope) checkRequired(in *draft) *domain.Error {
	for _, name := range [...]string{"specversion", "id", "source", "type"} {
		if !e.known(name).sent {
			fault := in.missing(name)
			fault.Message += " in each CloudEvent"
			return fault
		}
	}
	return nil
}

// check checks the parts of the envelope that are not usage.
func (e *envelope) check(in *draft) *domain.Error {
	switch {
	case e.fault != nil:
		return e.fault
	case e.base64:
		return &domain.Error{Code: "cloudevent_invalid", Pointer: "/data_base64",
			Message: "data_base64 is not supported; send data as a JSON object"}
	case string(e.specVersion.chars) != "1.0":
		return in.refuse("specversion", "cloudevent_invalid", `must be "1.0"`)
	case !isSource(e.source):
		return in.refuse("source", "cloudevent_invalid", "must be a URI reference of 1 to 1024 printable ASCII characters without space")
	case !e.kind.valid || len(e.kind.chars) == 0:
		return in.refuse("type", "cloudevent_invalid", "must be a string that is not empty")
	}
	return e.checkOthers(in)
}

func (e *envelope) checkOthers(in *draft) *domain.Error {
	for _, name := range [...]string{"dataschema", "traceparent", "tracestate", "partitionkey"} {
		if t := e.known(name); t.sent && !t.valid {
			return in.refuse(name, "cloudevent_invalid", "must be a string")
		}
	}
	if t := e.contentType; t.sent && (!t.valid || !isJSONType(string(t.chars))) {
		return in.refuse("datacontenttype", "cloudevent_invalid", "must be a JSON media type such as application/json, in UTF-8")
	}
	return nil
}

func isJSONType(contentType string) bool {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		return false
	}
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// open reads amount, metadata, type and correctionRef from data, and adds the extension attributes to
// metadata.
func (e *envelope) open(in *draft) *domain.Error {
	if e.data == nil {
		return &domain.Error{Code: "member_missing", Pointer: in.parent(), Message: "data is missing; it is required and holds amount"}
	}
	if e.data[0] != '{' {
		return &domain.Error{Code: "cloudevent_invalid", Pointer: in.parent(), Message: "data must be an object that holds amount"}
	}
	strictjson.EachMember(e.data, func(name, raw []byte) {
		switch string(name) {
		case "amount":
			in.amount = raw
		case "metadata":
			in.metadata = raw
		case "type":
			in.kind = textOf(raw)
		case "correctionRef":
			in.ref = textOf(raw)
		default:
			if !in.unknown.sent {
				in.unknown = text{sent: true, chars: name}
			}
		}
	})
	return e.extendMetadata(in)
}

// extendMetadata writes the extension attributes into metadata as its member ce.
// A CloudEvent may not send that member itself, because additions of an intermediary
// would be mistaken for data of the producer.
func (e *envelope) extendMetadata(in *draft) *domain.Error {
	rest := []byte("}")
	if in.metadata != nil && in.metadata[0] == '{' {
		taken, any := false, false
		strictjson.EachMember(in.metadata, func(name, _ []byte) { any, taken = true, taken || string(name) == "ce" })
		if taken {
			return in.refuse("metadata", "metadata_invalid", "must not have the member ce; extension attributes are kept there")
		}
		if rest = in.metadata[1:]; any {
			rest = append([]byte(","), rest...)
		}
	} else if in.metadata != nil && in.metadata[0] != 'n' {
		return nil // settle refuses metadata that is no object
	}
	if len(e.extensions) == 0 {
		return nil
	}
	out := []byte(`{"ce":{`)
	for i, a := range e.extensions {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(strictjson.AppendString(out, a.name), ':')
		out = strictjson.AppendString(out, a.value)
	}
	in.metadata = append(append(out, '}'), rest...)
	return nil
}
