package events

import (
	"encoding/hex"

	"github.com/google/uuid"
)

// HeaderTrace is the W3C Trace Context of an event's record (docs/how-to/trace.md).
const HeaderTrace = "traceparent"

// traceParentSize is the length of a traceparent of version 00.
const traceParentSize = 55

// SpanID returns the id of the span of an event: the last 8 bytes of its eventId. The log stores no span id.
func SpanID(eventID uuid.UUID) (id [8]byte) {
	copy(id[:], eventID[8:])
	return id
}

// AppendTraceParent appends the traceparent of an event in the trace. Its flags are always 00: a flag that says
// whether this process sampled the trace would change the bytes of a record that is published again.
func AppendTraceParent(dst []byte, trace, eventID uuid.UUID) []byte {
	dst = hex.AppendEncode(append(dst, "00-"...), trace[:])
	dst = hex.AppendEncode(append(dst, '-'), eventID[8:])
	return append(dst, "-00"...)
}

// TraceParent returns the traceparent that the records of the event have, "" without a trace.
func (e TracedEvent) TraceParent() string {
	if e.Trace == uuid.Nil {
		return ""
	}
	return string(AppendTraceParent(nil, e.Trace, e.EventID))
}

// ParseTraceParent reads the trace id and the span id of a traceparent header (W3C Trace Context, section 3.2).
// A malformed header is ignored, as the standard requires: zeros, capitals, other lengths, version ff.
func ParseTraceParent(value string) (trace uuid.UUID, span [8]byte, ok bool) {
	if len(value) != traceParentSize || value[:2] == "ff" {
		return trace, span, false
	}
	for i := range len(value) {
		c := value[i]
		if dash := i == 2 || i == 35 || i == 52; dash != (c == '-') || !dash && c-'0' > 9 && c-'a' > 'f'-'a' {
			return uuid.Nil, span, false
		}
	}
	for i := range trace {
		trace[i] = nibble(value[3+2*i])<<4 | nibble(value[4+2*i])
	}
	for i := range span {
		span[i] = nibble(value[36+2*i])<<4 | nibble(value[37+2*i])
	}
	if trace == uuid.Nil || span == [8]byte{} {
		return uuid.Nil, [8]byte{}, false
	}
	return trace, span, true
}

// nibble is the value of a lower-case hexadecimal digit.
func nibble(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}
