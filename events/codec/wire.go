package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// TenantText returns the wire form of a tenant id.
func TenantText(id uuid.UUID) string {
	if id == events.Platform {
		return "platform"
	}
	return id.String()
}

func appendTenant(dst []byte, id uuid.UUID) []byte {
	if id == events.Platform {
		return append(dst, "platform"...)
	}
	return events.AppendUUID(dst, id)
}

// AppendWire appends the complete envelope as JSON, with the vocabulary and the
// residency under which it was recorded. The same envelope gives the same bytes in
// every release, so a record that is published again is identical.
func AppendWire(dst []byte, e *events.Envelope) ([]byte, error) {
	return appendEnvelope(dst, e, false)
}

// appendEnvelope appends the envelope; forTenant leaves out the members of AppendTenantWire.
func appendEnvelope(dst []byte, e *events.Envelope, forTenant bool) ([]byte, error) {
	info, err := e.Vocabulary.Term(e.Subject)
	if err != nil {
		return nil, err
	}
	if !events.IsResidency(e.Residency) {
		return nil, fmt.Errorf("events: %.80q is not a data residency", e.Residency)
	}
	dst = append(dst, `{"eventId":"`...)
	dst = events.AppendUUID(dst, e.EventID)
	dst = append(dst, info.Prefix...)
	dst = appendTenant(dst, e.TenantID)
	dst = append(dst, `","partition":`...)
	dst = strconv.AppendInt(dst, int64(e.Position.Partition), 10)
	dst = append(dst, `,"position":"`...)
	dst = e.Position.Append(dst)
	dst = append(dst, `","epoch":`...)
	dst = strconv.AppendInt(dst, int64(e.Epoch), 10)
	dst = appendOptionalID(dst, `,"correlationId":`, e.CorrelationID)
	dst = appendOptionalID(dst, `,"causationId":`, e.CausationID)
	dst = append(dst, `,"actor":{"type":`...)
	dst = appendString(dst, e.Actor.Type)
	if !forTenant {
		dst = append(dst, `,"id":`...)
		dst = appendString(dst, e.Actor.ID)
	}
	if e.Actor.Via != "" {
		dst = append(dst, `,"via":`...)
		dst = appendString(dst, e.Actor.Via)
	}
	dst = append(dst, `},"occurredAt":"`...)
	dst = e.OccurredAt.UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","recordedAt":"`...)
	dst = append(e.RecordedAt.UTC().AppendFormat(dst, time.RFC3339Nano), '"')
	if !forTenant {
		dst = appendProducer(dst, &e.Producer)
	}
	if !forTenant || !events.IsKeyOfCommand(e.DedupeKey) {
		dst = append(dst, `,"idempotencyKey":`...)
		dst = appendString(dst, e.DedupeKey)
	}
	dst = append(dst, `,"payload":`...)
	dst = append(dst, e.Payload...)
	dst = append(dst, `,"metadata":{"retentionClass":"`...)
	dst = append(dst, info.Suffix...)
	dst = append(dst, e.Residency...)
	dst = append(dst, `","orderingKey":"`...)
	dst = appendTenant(dst, e.TenantID)
	dst = append(dst, '"')
	if e.Replay != "" {
		dst = append(dst, `,"replay":`...)
		dst = appendString(dst, e.Replay)
	}
	return append(dst, "}}"...), nil
}

func appendProducer(dst []byte, p *events.Producer) []byte {
	dst = append(dst, `,"producedBy":{"service":`...)
	dst = appendString(dst, p.Service)
	dst = append(dst, `,"instance":`...)
	dst = appendString(dst, p.Instance)
	dst = append(dst, `,"commit":`...)
	return append(appendString(dst, p.Commit), '}')
}

func appendOptionalID(dst []byte, member string, id uuid.UUID) []byte {
	dst = append(dst, member...)
	if id == uuid.Nil {
		return append(dst, "null"...)
	}
	return append(events.AppendUUID(append(dst, '"'), id), '"')
}

// appendString writes a JSON string. Nearly all strings need no escape and are copied.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string never fails
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}

// ToRecord returns the broker record of an event: its envelope, or for a withheld
// event an empty value with the same headers.
func ToRecord(e *events.Envelope) (events.Record, error) {
	w := RecordWriter{headers: make([]events.Header, 0, maxHeaders), bytes: make([]byte, 0, len(e.Payload)+recordBytes)}
	return w.Record(e)
}

// RecordWriter returns the broker records of many events. Up to a few dozen of them share memory, which is freed with the last
// of them: of a batch, all records end at once. The zero RecordWriter is ready.
type RecordWriter struct {
	headers []events.Header
	bytes   []byte
}

const (
	maxHeaders  = 9         // of a record
	recordBytes = 1200      // of a record without its payload, at most; a longer one is moved to other memory once
	sharedBytes = 31 * 1024 // of the values of consecutive records
	sharedList  = 32        // consecutive records whose headers are one list
)

// Record is ToRecord with the memory of the writer.
func (w *RecordWriter) Record(e *events.Envelope) (events.Record, error) {
	info, err := e.Vocabulary.Term(e.Subject)
	if err != nil {
		return events.Record{}, err
	}
	if info.Topic == 0 {
		return events.Record{}, fmt.Errorf("events: %s is of a topic that this release does not know", info.Name())
	}
	if cap(w.headers)-len(w.headers) < maxHeaders {
		w.headers = make([]events.Header, 0, maxHeaders*sharedList)
	}
	if need := len(e.Payload) + recordBytes; cap(w.bytes)-len(w.bytes) < need {
		w.bytes = make([]byte, 0, max(need, sharedBytes))
	}
	first := len(w.headers)
	w.add(events.HeaderSubject, info.AppendName(w.bytes))
	w.add(events.HeaderPosition, e.Position.Append(w.bytes))
	w.add(events.HeaderPrevious, strconv.AppendInt(w.bytes, e.Previous, 10))
	w.add(events.HeaderEpoch, strconv.AppendInt(w.bytes, int64(e.Epoch), 10))
	w.add(events.HeaderEventID, events.AppendUUID(w.bytes, e.EventID))
	tenant := w.add(events.HeaderTenant, appendTenant(w.bytes, e.TenantID))
	if e.LogID != uuid.Nil {
		w.add(events.HeaderLog, events.AppendUUID(w.bytes, e.LogID))
	}
	if e.CorrelationID != uuid.Nil {
		w.add(events.HeaderTrace, events.AppendTraceParent(w.bytes, e.CorrelationID, e.EventID))
	}
	if e.Withheld {
		w.add(events.HeaderWithheld, append(w.bytes, '1'))
	}
	r := events.Record{
		Topic: info.Topic, Partition: e.Position.Partition, Offset: -1, Key: tenant,
		Headers: w.headers[first:len(w.headers):len(w.headers)],
	}
	if e.Withheld {
		return r, nil
	}
	whole, err := AppendWire(w.bytes, e)
	if err != nil {
		return r, err
	}
	r.Value = w.end(whole)
	return r, nil
}

// add adds a header. grown is the writer's memory with the header's value appended to it.
func (w *RecordWriter) add(key string, grown []byte) []byte {
	value := w.end(grown)
	w.headers = append(w.headers, events.Header{Key: key, Value: value})
	return value
}

// end returns the bytes that were appended to the writer's memory.
func (w *RecordWriter) end(grown []byte) []byte {
	value := grown[len(w.bytes):len(grown):len(grown)]
	w.bytes = grown
	return value
}

// ErrNoPosition says that a record names no position in a log.
var ErrNoPosition = errors.New("the record has no position in its headers")

// PositionOf reads the position that the headers of a record name. It fails if this service did not write the record.
func PositionOf(r *events.Record) (events.RecordPosition, error) {
	position, ok := events.PositionFrom(r.Header(events.HeaderPosition))
	if !ok || position.Partition != r.Partition {
		return events.RecordPosition{}, ErrNoPosition
	}
	previous, err1 := strconv.ParseInt(string(r.Header(events.HeaderPrevious)), 10, 64)
	epoch, err2 := strconv.ParseInt(string(r.Header(events.HeaderEpoch)), 10, 32)
	if err1 != nil || err2 != nil || epoch < 0 || previous < 0 || previous >= position.Number {
		return events.RecordPosition{}, ErrNoPosition
	}
	// A malformed id becomes Nil, which no event and no log has.
	id, _ := uuid.ParseBytes(r.Header(events.HeaderEventID))
	log, _ := uuid.ParseBytes(r.Header(events.HeaderLog))
	return events.RecordPosition{
		Position: position, Previous: previous, Epoch: int32(epoch), Log: log, EventID: id,
		Withheld: r.Header(events.HeaderWithheld) != nil, Replay: r.Header(events.HeaderReplay) != nil,
	}, nil
}
