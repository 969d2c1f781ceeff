package codec

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// wireReader reads an envelope only in the exact form of AppendWire: the same members
// in the same order, no blanks, strings without escapes. At any other input it gives
// up, and the general decoder decides. So it may be faster than the general decoder,
// but never returns a different result.
type wireReader struct {
	rest []byte
	bad  bool
}

// skip reads a literal.
func (r *wireReader) skip(text string) {
	if r.bad || len(r.rest) < len(text) || string(r.rest[:len(text)]) != text {
		r.bad = true
		return
	}
	r.rest = r.rest[len(text):]
}

// text reads the rest of a string, including the closing quote.
func (r *wireReader) text() []byte {
	end := bytes.IndexByte(r.rest, '"')
	if r.bad || end < 0 {
		r.bad = true
		return nil
	}
	s := r.rest[:end]
	for _, c := range s {
		if c < 0x20 || c >= 0x7f || c == '\\' {
			r.bad = true
		}
	}
	r.rest = r.rest[end+1:]
	return s
}

// known reads a string that is likely to be one of texts. It does not copy these.
func (r *wireReader) known(texts ...string) string {
	s := r.text()
	for _, text := range texts {
		if string(s) == text {
			return text
		}
	}
	return string(s)
}

func (r *wireReader) eventType() string {
	s := r.text()
	for _, info := range events.Subjects() {
		if string(s) == info.Type {
			return info.Type
		}
	}
	return string(s)
}

// number reads digits as the server writes them, with an optional minus sign.
func (r *wireReader) number(bits int) int64 {
	n := 0
	for n < len(r.rest) && (r.rest[n] == '-' || r.rest[n] >= '0' && r.rest[n] <= '9') {
		n++
	}
	v, err := strconv.ParseInt(string(r.rest[:n]), 10, bits)
	// Leading zeros are not JSON.
	if err != nil || n > 1 && r.rest[0] == '0' || n > 2 && r.rest[0] == '-' && r.rest[1] == '0' {
		r.bad = true
	}
	r.rest = r.rest[n:]
	return v
}

func (r *wireReader) id() uuid.UUID {
	s := r.text()
	id, err := uuid.ParseBytes(s)
	if err != nil || len(s) != 36 {
		r.bad = true
	}
	return id
}

func (r *wireReader) optionalID() *uuid.UUID {
	if bytes.HasPrefix(r.rest, []byte("null")) {
		r.skip("null")
		return nil
	}
	r.skip(`"`)
	id := r.id()
	return &id
}

func (r *wireReader) time() (t time.Time) {
	s := r.text()
	if r.bad || len(s) == 0 || s[len(s)-1] != 'Z' || t.UnmarshalText(s) != nil {
		r.bad = true
	}
	return t
}

func (r *wireReader) position() events.Position {
	p, ok := events.PositionFrom(r.text())
	r.bad = r.bad || !ok
	return p
}

const wireMetadata = `,"metadata":{"retentionClass":"`

// payload reads the payload, which ends before the metadata, the last member.
func (r *wireReader) payload() json.RawMessage {
	end := bytes.LastIndex(r.rest, []byte(wireMetadata))
	if r.bad || end < 0 || !plainJSON(r.rest[:end]) {
		r.bad = true
		return nil
	}
	p := bytes.Clone(r.rest[:end])
	r.rest = r.rest[end+len(wireMetadata):]
	return p
}

// parseCanonical reads the output of AppendWire; ok is false for any other form.
func parseCanonical(value []byte) (w wire, ok bool) {
	r := wireReader{rest: value}
	r.skip(`{"eventId":"`)
	w.EventID = r.id()
	r.skip(`,"eventType":"`)
	w.EventType = r.eventType()
	r.skip(`,"eventVersion":`)
	w.EventVersion = int(r.number(strconv.IntSize))
	r.skip(`,"schemaUri":"`)
	r.text() // not needed: the subject determines it
	r.skip(`,"tenantId":"`)
	w.TenantID = string(r.text())
	r.skip(`,"partition":`)
	w.Partition = int16(r.number(16))
	r.skip(`,"position":"`)
	w.Position = r.position()
	r.skip(`,"epoch":`)
	w.Epoch = int32(r.number(32))
	r.skip(`,"correlationId":`)
	w.CorrelationID = r.optionalID()
	r.skip(`,"causationId":`)
	w.CausationID = r.optionalID()
	r.skip(`,"actor":{"type":"`)
	w.Actor.Type = r.known("api_key", "service")
	r.skip(`,"id":"`)
	w.Actor.ID = string(r.text())
	r.skip(`},"occurredAt":"`)
	w.OccurredAt = r.time()
	r.skip(`,"recordedAt":"`)
	w.RecordedAt = r.time()
	r.skip(`,"producedBy":{"service":"`)
	w.ProducedBy.Service = r.known("meterplex")
	r.skip(`,"instance":"`)
	w.ProducedBy.Instance = string(r.text())
	r.skip(`,"commit":"`)
	w.ProducedBy.Commit = string(r.text())
	r.skip(`},"idempotencyKey":"`)
	w.DedupeKey = string(r.text())
	r.skip(`,"payload":`)
	w.Payload = r.payload()
	w.Metadata.RetentionClass = r.known("cold", "warm", "hot")
	r.skip(`,"dataResidency":"`)
	w.Metadata.DataResidency = r.known(events.ResidencyUnspecified)
	r.skip(`,"orderingKey":"`)
	w.Metadata.OrderingKey = r.known(w.TenantID)
	r.skip(`}}`) // the general decoder reads envelopes with the members replay or actor.via
	return w, !r.bad && len(r.rest) == 0
}
