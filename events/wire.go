package events

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// TenantText returns the wire form of a tenant id.
func TenantText(id uuid.UUID) string {
	if id == Platform {
		return "platform"
	}
	return id.String()
}

func appendTenant(dst []byte, id uuid.UUID) []byte {
	if id == Platform {
		return append(dst, "platform"...)
	}
	return appendUUID(dst, id)
}

func parseTenant(s string) (uuid.UUID, error) {
	if s == "platform" {
		return Platform, nil
	}
	return uuid.Parse(s)
}

// AppendWire appends the complete envelope as JSON, with the vocabulary and the
// residency under which it was recorded. The same envelope gives the same bytes in
// every release, so a record that is published again is identical.
func AppendWire(dst []byte, e *Envelope) ([]byte, error) {
	info, err := e.Vocabulary.term(e.Subject)
	if err != nil {
		return nil, err
	}
	if !IsResidency(e.Residency) {
		return nil, fmt.Errorf("events: %.80q is not a data residency", e.Residency)
	}
	dst = append(dst, `{"eventId":"`...)
	dst = appendUUID(dst, e.EventID)
	dst = append(dst, info.head...)
	dst = appendTenant(dst, e.TenantID)
	dst = append(dst, `","partition":`...)
	dst = strconv.AppendInt(dst, int64(e.Position.Partition), 10)
	dst = append(dst, `,"position":"`...)
	dst = e.Position.append(dst)
	dst = append(dst, `","epoch":`...)
	dst = strconv.AppendInt(dst, int64(e.Epoch), 10)
	dst = appendOptionalID(dst, `,"correlationId":`, e.CorrelationID)
	dst = appendOptionalID(dst, `,"causationId":`, e.CausationID)
	dst = append(dst, `,"actor":{"type":`...)
	dst = appendString(dst, e.Actor.Type)
	dst = append(dst, `,"id":`...)
	dst = appendString(dst, e.Actor.ID)
	dst = append(dst, `},"occurredAt":"`...)
	dst = e.OccurredAt.UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","recordedAt":"`...)
	dst = e.RecordedAt.UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","producedBy":{"service":`...)
	dst = appendString(dst, e.Producer.Service)
	dst = append(dst, `,"instance":`...)
	dst = appendString(dst, e.Producer.Instance)
	dst = append(dst, `,"commit":`...)
	dst = appendString(dst, e.Producer.Commit)
	dst = append(dst, `},"idempotencyKey":`...)
	dst = appendString(dst, e.DedupeKey)
	dst = append(dst, `,"payload":`...)
	dst = append(dst, e.Payload...)
	dst = append(dst, info.tail...)
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

func appendUUID(dst []byte, id uuid.UUID) []byte {
	var text [36]byte
	hex.Encode(text[:], id[:4])
	hex.Encode(text[9:], id[4:6])
	hex.Encode(text[14:], id[6:8])
	hex.Encode(text[19:], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return append(dst, text[:]...)
}

func appendOptionalID(dst []byte, member string, id uuid.UUID) []byte {
	dst = append(dst, member...)
	if id == uuid.Nil {
		return append(dst, "null"...)
	}
	return append(appendUUID(append(dst, '"'), id), '"')
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

type wire struct {
	EventID       uuid.UUID       `json:"eventId"`
	EventType     string          `json:"eventType"`
	EventVersion  int             `json:"eventVersion"`
	TenantID      string          `json:"tenantId"`
	Partition     int16           `json:"partition"`
	Position      Position        `json:"position"`
	Epoch         int32           `json:"epoch"`
	CorrelationID *uuid.UUID      `json:"correlationId"`
	CausationID   *uuid.UUID      `json:"causationId"`
	Actor         Actor           `json:"actor"`
	OccurredAt    time.Time       `json:"occurredAt"`
	RecordedAt    time.Time       `json:"recordedAt"`
	ProducedBy    Producer        `json:"producedBy"`
	DedupeKey     string          `json:"idempotencyKey"`
	Payload       json.RawMessage `json:"payload"`
	Metadata      Metadata        `json:"metadata"`
}

// Faults of a record, for errors.Is.
var (
	ErrUndecodable    = errors.New("the record does not decode as an envelope")
	ErrUnknownSubject = errors.New("the record's type and version are not registered")
)

// ParseWire reads an envelope of AppendWire. Previous and Vocabulary are not part of the
// value and stay empty.
func ParseWire(value []byte) (Envelope, error) {
	w, ok := parseCanonical(value)
	if !ok {
		w = wire{}
		if err := json.Unmarshal(value, &w); err != nil {
			return Envelope{}, fmt.Errorf("%w: %v", ErrUndecodable, err)
		}
	}
	subject, ok := SubjectOf(w.EventType, w.EventVersion)
	if !ok {
		return Envelope{}, fmt.Errorf("%w: %.100q version %d", ErrUnknownSubject, w.EventType, w.EventVersion)
	}
	if !IsResidency(w.Metadata.DataResidency) {
		return Envelope{}, fmt.Errorf("%w: %.80q is not a data residency", ErrUndecodable, w.Metadata.DataResidency)
	}
	if w.EventID == uuid.Nil || len(w.Payload) == 0 || !isWritable(w.OccurredAt) || !isWritable(w.RecordedAt) {
		return Envelope{}, fmt.Errorf("%w: id, payload or a time is missing", ErrUndecodable)
	}
	tenant, err := parseTenant(w.TenantID)
	if err != nil || w.Position.Partition != w.Partition || w.Position.Number < 1 {
		return Envelope{}, fmt.Errorf("%w: tenant or position is missing", ErrUndecodable)
	}
	e := Envelope{
		EventID: w.EventID, Subject: subject, TenantID: tenant, Position: w.Position, Epoch: w.Epoch,
		Actor: w.Actor, Producer: w.ProducedBy, OccurredAt: w.OccurredAt, RecordedAt: w.RecordedAt,
		DedupeKey: w.DedupeKey, Payload: w.Payload, Replay: w.Metadata.Replay, Residency: w.Metadata.DataResidency,
	}
	if w.CorrelationID != nil {
		e.CorrelationID = *w.CorrelationID
	}
	if w.CausationID != nil {
		e.CausationID = *w.CausationID
	}
	return e, nil
}

// isWritable reports whether AppendWire can write the time: a year may have four
// digits in another zone, but not in UTC.
func isWritable(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 0 && year <= 9999
}

// ToRecord returns the broker record of an event: its envelope, or for a withheld
// event an empty value with the same headers.
func ToRecord(e *Envelope) (Record, error) {
	info, err := e.Vocabulary.term(e.Subject)
	if err != nil {
		return Record{}, err
	}
	if info.Topic == 0 {
		return Record{}, fmt.Errorf("events: %s is of a topic that this release does not know", info.Name())
	}
	h := headerWriter{list: make([]Header, 0, 8), buf: make([]byte, 0, 240)}
	h.add(HeaderSubject, info.appendName(h.buf))
	h.add(HeaderPosition, e.Position.append(h.buf))
	h.add(HeaderPrevious, strconv.AppendInt(h.buf, e.Previous, 10))
	h.add(HeaderEpoch, strconv.AppendInt(h.buf, int64(e.Epoch), 10))
	h.add(HeaderEventID, appendUUID(h.buf, e.EventID))
	tenant := h.add(HeaderTenant, appendTenant(h.buf, e.TenantID))
	if e.LogID != uuid.Nil {
		h.add(HeaderLog, appendUUID(h.buf, e.LogID))
	}
	r := Record{Topic: info.Topic, Partition: e.Position.Partition, Offset: -1, Key: tenant, Headers: h.list}
	if e.Withheld {
		r.Headers = append(r.Headers, Header{HeaderWithheld, []byte("1")})
		return r, nil
	}
	value, err := AppendWire(make([]byte, 0, len(e.Payload)+900), e)
	r.Value = value
	return r, err
}

// headerWriter writes the values of a record's headers into one buffer.
type headerWriter struct {
	list []Header
	buf  []byte
}

// add adds a header. grown is the buffer with the header's value appended to it.
func (h *headerWriter) add(key string, grown []byte) []byte {
	value := grown[len(h.buf):len(grown):len(grown)]
	h.list, h.buf = append(h.list, Header{key, value}), grown
	return value
}

// Place is a record's place in the log, read only from its headers.
type Place struct {
	Position Position
	Previous int64
	Epoch    int32
	Log      uuid.UUID // Nil: written by a release without this header
	EventID  uuid.UUID
	Withheld bool
	Replay   bool
}

// PlaceOf reads a record's place. It fails if this service did not write the record.
func PlaceOf(r *Record) (Place, error) {
	position, ok := parsePosition(r.Header(HeaderPosition))
	if !ok || position.Partition != r.Partition {
		return Place{}, fmt.Errorf("%w: no place in its headers", ErrUndecodable)
	}
	previous, err1 := strconv.ParseInt(string(r.Header(HeaderPrevious)), 10, 64)
	epoch, err2 := strconv.ParseInt(string(r.Header(HeaderEpoch)), 10, 32)
	if err1 != nil || err2 != nil || epoch < 0 || previous < 0 || previous >= position.Number {
		return Place{}, fmt.Errorf("%w: no place in its headers", ErrUndecodable)
	}
	// A malformed id becomes Nil, which no event and no log has.
	id, _ := uuid.ParseBytes(r.Header(HeaderEventID))
	log, _ := uuid.ParseBytes(r.Header(HeaderLog))
	return Place{position, previous, int32(epoch), log, id, r.Header(HeaderWithheld) != nil, r.Header(HeaderReplay) != nil}, nil
}

// FromRecord reads a complete record: its place and, unless it is withheld, its
// envelope, which must agree with the place.
func FromRecord(r *Record) (Envelope, error) {
	place, err := PlaceOf(r)
	if err != nil {
		return Envelope{}, err
	}
	if place.Withheld {
		return Envelope{LogID: place.Log, Position: place.Position, Previous: place.Previous, Epoch: place.Epoch, Withheld: true}, nil
	}
	e, err := ParseWire(r.Value)
	if err != nil {
		return Envelope{}, err
	}
	if e.Position != place.Position || e.Epoch != place.Epoch || e.EventID != place.EventID || e.Subject.Topic() != r.Topic {
		return Envelope{}, fmt.Errorf("%w: value and headers disagree on its place", ErrUndecodable)
	}
	e.Previous, e.LogID = place.Previous, place.Log
	return e, nil
}
