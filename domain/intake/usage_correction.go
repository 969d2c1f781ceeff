package intake

import (
	"strconv"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// eventType returns the type of an event whose type is valid.
func (in *draft) eventType() string {
	switch {
	case !in.kind.sent:
		return events.TypeUsage
	case string(in.kind.chars) == events.TypeCorrection:
		return events.TypeCorrection
	case string(in.kind.chars) == events.TypeRetraction:
		return events.TypeRetraction
	}
	return events.TypeUsage
}

// checkRef checks correctionRef, which corrections and retractions must have, and usage must not.
func (in *draft) checkRef(eventID string) *domain.Error {
	ref := in.ref
	switch {
	case in.eventType() == events.TypeUsage && ref.sent:
		return in.refuse("correctionRef", "correction_ref_invalid", "is for corrections and retractions only; leave it out of usage")
	case in.eventType() == events.TypeUsage:
		return nil
	case !ref.sent:
		return in.missing("correctionRef")
	case !ref.valid || len(ref.chars) < 1 || len(ref.chars) > MaxEventID || !isPrintable(ref.chars):
		return in.refuse("correctionRef", "correction_ref_invalid",
			"must be the eventId of the usage to correct: a string of 1 to 255 printable ASCII characters without space ('!' to '~')")
	case string(ref.chars) == eventID:
		return in.refuse("correctionRef", "correction_ref_invalid", "is the event's own eventId; it must be that of the usage to correct")
	}
	return nil
}

// sealCorrection writes Body as the whole payload of a correction or a retraction, in the order of RFC 8785.
func (d *decoder) sealCorrection(event *domain.UsageEvent, in *draft) *domain.Error {
	out := make([]byte, 0, 256+min(len(in.metadata), MaxMetadata)+len(in.source)+len(in.ref.chars))
	out = append(out, '{')
	if event.Type == events.TypeCorrection {
		out = append(strconv.AppendInt(append(out, `"amount":`...), event.Amount, 10), ',')
	}
	out = strictjson.AppendString(append(out, `"correctionRef":`...), in.ref.chars)
	out = strictjson.AppendString(append(out, `,"eventId":`...), in.eventID.chars)
	out = append(append(append(out, `,"feature":"`...), event.Feature...), '"')
	metadata, fault := d.appendMetadata(nil, in)
	if fault != nil {
		return fault
	}
	if len(metadata) > 0 {
		out = append(append(out, `,"metadata":`...), metadata[1:]...)
	}
	if event.Source != "" {
		out = strictjson.AppendString(append(out, `,"source":`...), event.Source)
	}
	out = codec.AppendTime(append(out, `,"timestamp":"`...), event.Timestamp)
	event.Body = append(append(append(out, `","type":"`...), event.Type...), `"}`...)
	return nil
}
